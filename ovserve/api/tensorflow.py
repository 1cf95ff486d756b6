"""Bodies of `:predict`: row form (`instances`, `predictions`) and column form (`inputs`, `outputs`).

A value has the type of the model's input. Binary values are `{"b64": "..."}`. An input of another type than
text that is given binary values is an image file, decoded by the server.

Bodies and answers have NaN, Infinity and -Infinity as TensorFlow Serving documents them, which JSON lacks.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from ovserve.api.kserve import Tensor
from ovserve.api.kserve.tensor import BYTES, FLOATS
from ovserve.api.openai.body import decode_body, unique_members
from ovserve.api.openai.common import encode
from ovserve.api.openai.operation import doc
from ovserve.errors import InvalidArgument

B64 = "b64"
MAX_RANK = 16
MISSING: Any = msgspec.UNSET


class PredictBody(msgspec.Struct):
    signature_name: Annotated[str | None, doc("Ignored: a model has one signature.")] = None
    instances: Annotated[
        Any, doc("Rows: a list with one value, or one object of values by input, for each row of the batch.")
    ] = MISSING
    inputs: Annotated[
        Any,
        doc("Columns: an object of values by input, or the value of the only input. Not with `instances`."),
    ] = MISSING


class InputType(NamedTuple):
    """An input of the model, for decoding a body."""

    name: str
    names: tuple[str, ...]
    datatype: str


class Predict(NamedTuple):
    tensors: dict[str, Tensor]
    rows: bool  # the answer is in row form too
    ignored: tuple[str, ...]


_decoder = msgspec.json.Decoder(PredictBody)


def decode_predict(body: bytes, inputs: Sequence[InputType]) -> Predict:
    """Raises InvalidArgument that names the field."""
    document, unknown = _decoded(body)
    if (document.instances is MISSING) == (document.inputs is MISSING):
        raise InvalidArgument(
            "Invalid JSON structure. Could not detect row or column format", param="instances"
        )
    ignored = unknown + (("signature_name",) if document.signature_name else ())
    rows = document.instances is not MISSING
    values = (
        _columns(document.instances, inputs) if rows else _values_by_name(document.inputs, inputs, "inputs")
    )
    inputs_by_name = {name: one for one in inputs for name in one.names}
    tensors = {
        name: _tensor(value, inputs_by_name[name].datatype if name in inputs_by_name else "FP32", name[:80])
        for name, value in values.items()
    }
    return Predict(tensors, rows, ignored)


def _decoded(body: bytes) -> tuple[PredictBody, tuple[str, ...]]:
    """Return the body, and the fields that mean nothing."""
    if b"NaN" not in body and b"Infinity" not in body:
        document, unknown = decode_body(body, _decoder)
        return document, tuple(sorted(unknown))
    unique_members(body)  # which says what is wrong with any body
    try:
        members = json.loads(body, parse_float=_finite)
        document = msgspec.convert(members, PredictBody)
    except msgspec.ValidationError as exc:
        raise InvalidArgument(f"the body is not valid: {exc}") from None
    except ValueError:  # Python's, which speaks of its settings
        raise InvalidArgument("the body has a whole number that no type can hold") from None
    return document, tuple(sorted(members.keys() - set(PredictBody.__struct_fields__)))


def _finite(text: str) -> float:
    """Return a number. Raises InvalidArgument for one that only an infinity could stand for."""
    if math.isinf(value := float(text)):
        raise InvalidArgument(f"the body has a number out of range: {text[:40]}")
    return value


def encode_predict(outputs: Mapping[str, Tensor], rows: bool) -> bytes:
    """Raises InvalidArgument for BF16, and for rows of an output without a batch."""
    batches = {tensor.shape[:1] for tensor in outputs.values()}
    if rows and (len(batches) > 1 or () in batches):
        shapes = ", ".join(f"{name!r} {list(tensor.shape)}" for name, tensor in outputs.items())
        raise InvalidArgument.at("instances", f"the outputs have no common batch, use inputs: {shapes}")
    flat = {
        name: list(map(_json_string, tensor.elements)) if tensor.datatype == BYTES else tensor.values
        for name, tensor in outputs.items()
    }
    floats = [values for name, values in flat.items() if outputs[name].datatype in FLOATS]
    columns = {name: _grouped(values, outputs[name].shape) for name, values in flat.items()}
    answer: Any = next(iter(columns.values())) if len(columns) == 1 else columns
    if rows and answer is columns:
        answer = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    answer = {"predictions" if rows else "outputs": answer}
    finite = all(all(map(math.isfinite, values)) for values in floats)
    return encode(answer) if finite else json.dumps(answer).encode()


def _columns(instances: Any, inputs: Sequence[InputType]) -> dict[str, Any]:
    """Return rows as columns."""
    if not isinstance(instances, list) or not instances:
        raise InvalidArgument.at("instances", "expected a list of at least one value")
    if not isinstance(instances[0], dict) or instances[0].keys() == {B64}:
        return _values_by_name(instances, inputs, "instances")
    names = instances[0].keys()
    for i, row in enumerate(instances):
        if not isinstance(row, dict) or row.keys() != names:
            raise InvalidArgument(
                f"instances[{i}]: expected an object with {', '.join(names)[:80]}, as the first",
                param="instances",
            )
    return {name: [row[name] for row in instances] for name in names}


def _values_by_name(value: Any, inputs: Sequence[InputType], field: str) -> dict[str, Any]:
    if isinstance(value, dict) and value.keys() != {B64}:
        return value
    if len(inputs) != 1:
        listed = ", ".join(repr(one.name) for one in inputs)
        raise InvalidArgument.at(field, f"expected values by name, for {listed}")
    return {inputs[0].name: value}


def _tensor(value: Any, datatype: str, name: str) -> Tensor:
    shape: list[int] = []
    level: list[Any] = [value]
    inner = value
    while isinstance(inner, list):
        if len(shape) == MAX_RANK:
            raise InvalidArgument.at(name, f"nested more than {MAX_RANK} deep")
        shape.append(len(inner))
        if any(not isinstance(one, list) or len(one) != len(inner) for one in level):
            raise InvalidArgument.at(name, "its lists have different lengths")
        level = [element for one in level for element in one]
        inner = inner[0] if inner else None
    if any(isinstance(one, list) for one in level):
        raise InvalidArgument.at(name, "its lists have different depths")
    if any(isinstance(one, dict) for one in level):
        return Tensor.of(BYTES, shape, [_binary(one, name) for one in level])
    try:
        return Tensor.of(datatype, shape, level)
    except InvalidArgument as error:
        raise InvalidArgument.at(name, str(error)) from None


def _binary(value: Any, name: str) -> bytes:
    try:
        if isinstance(value, str):
            return value.encode()
        return base64.b64decode(value[B64], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise InvalidArgument.at(name, f'expected {{"b64": base64 text}}, got {str(value)[:80]}') from None


def _grouped(flat: list[Any], shape: Sequence[int]) -> Any:
    if len(shape) < 2:
        return flat if shape else flat[0]
    size = math.prod(shape[1:])
    return [_grouped(flat[i * size : (i + 1) * size], shape[1:]) for i in range(shape[0])]


def _json_string(element: bytes) -> str | dict[str, str]:
    try:
        return element.decode()
    except UnicodeDecodeError:
        return {B64: base64.b64encode(element).decode()}
