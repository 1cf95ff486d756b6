"""KServe's REST form: a JSON object, with the tensors' elements in it or, by the binary extension, behind it.

With the extension a body is the JSON and then the raw bytes of each tensor that has a `binary_data_size`, in
order; the header Inference-Header-Content-Length says where the JSON ends. Used by `rest/v2_models.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from ovserve.errors import InvalidArgument
from ovserve.kserve.infer import InferRequest, InferResponse, Parameter
from ovserve.kserve.tensor import BYTES, FLOATS, Tensor
from ovserve.openai.body import decode_body
from ovserve.openai.common import encode

HEADER_LENGTH = "Inference-Header-Content-Length"
BINARY_SIZE, BINARY, BINARY_ALL = "binary_data_size", "binary_data", "binary_data_output"
SHARED_MEMORY = "shared_memory_region"


class _Input(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    data: list[Any] | UnsetType = UNSET
    parameters: dict[str, Parameter] = {}


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Parameter] = {}


class _Body(msgspec.Struct):
    inputs: list[_Input]
    id: str = ""
    parameters: dict[str, Parameter] = {}
    outputs: list[_Output] = []


_decoder = msgspec.json.Decoder(_Body)


class Wanted(NamedTuple):
    """Which outputs go behind the JSON: the named ones, and the others as `others` says."""

    named: Mapping[str, bool]
    others: bool = False

    def binary(self, name: str) -> bool:
        return self.named.get(name, self.others)


class Decoded(NamedTuple):
    request: InferRequest
    wanted: Wanted
    ignored: tuple[str, ...]  # fields of the body that mean nothing here


def decode_infer(model: str, version: str, body: bytes, header_length: str | None) -> Decoded:
    """Raises InvalidArgument that names the field, e.g. `inputs[0].data`."""
    end = _header_end(header_length, len(body))
    document, fields = decode_body(body[:end], _decoder)
    raw, at, tensors = memoryview(body), end, dict[str, Tensor]()
    for i, given in enumerate(document.inputs):
        where = f"inputs[{i}]"
        size = _binary_size(given, where, len(body) - at)
        if given.name in tensors:
            raise InvalidArgument(f"{where}.name: {given.name!r} is given twice", param=f"{where}.name")
        tensors[given.name] = _tensor(given, where, None if size is None else bytes(raw[at : at + size]))
        at += size or 0
    if at != len(body):
        raise InvalidArgument(f"the body has {len(body) - at} bytes that belong to no input's {BINARY_SIZE}")
    parameters = dict(document.parameters)
    others = _truth(parameters.pop(BINARY_ALL, False), f"parameters.{BINARY_ALL}")
    named = {}
    for i, output in enumerate(document.outputs):
        _refuse_shared_memory(output.parameters, f"outputs[{i}]")
        named[output.name] = _truth(
            output.parameters.get(BINARY, others), f"outputs[{i}].parameters.{BINARY}"
        )
    request = InferRequest(model, tensors, version, document.id, parameters, tuple(named))
    return Decoded(request, Wanted(named, others), tuple(sorted(fields)))


def encode_infer(response: InferResponse, wanted: Wanted) -> tuple[bytes, int | None]:
    """The body, and the length of its JSON part when binary data follows."""
    outputs, behind = [], []
    for name, tensor in response.outputs.items():
        row: dict[str, Any] = {"name": name, "datatype": tensor.datatype, "shape": tensor.shape}
        if wanted.binary(name):
            row["parameters"] = {BINARY_SIZE: len(tensor.data)}
            behind.append(tensor.data)
        else:
            row["data"] = _json_values(name, tensor)
        outputs.append(row)
    document: dict[str, Any] = {"model_name": response.model, "model_version": response.version}
    if response.id:
        document["id"] = response.id
    if response.parameters:
        document["parameters"] = response.parameters
    head = encode(document | {"outputs": outputs})
    return (b"".join([head, *behind]), len(head)) if behind else (head, None)


def _header_end(header_length: str | None, size: int) -> int:
    if header_length is None:
        return size
    if not header_length.isascii() or not header_length.isdigit() or int(header_length) > size:
        raise InvalidArgument(
            f"{HEADER_LENGTH}: expected 0 to {size}, the size of the body, got {header_length!r}"
        )
    return int(header_length)


def _binary_size(given: _Input, where: str, left: int) -> int | None:
    _refuse_shared_memory(given.parameters, where)
    size = given.parameters.get(BINARY_SIZE)
    if size is None:
        return None
    field = f"{where}.parameters.{BINARY_SIZE}"
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= left:
        raise InvalidArgument(f"{field}: expected 0 to {left}, what is left of the body, got {size!r}")
    if given.data is not UNSET:
        raise InvalidArgument(f"{where}.data: given twice, here and behind the JSON", param=f"{where}.data")
    return size


def _refuse_shared_memory(parameters: Mapping[str, Parameter], where: str) -> None:
    if SHARED_MEMORY in parameters:
        field = f"{where}.parameters.{SHARED_MEMORY}"
        raise InvalidArgument(f"{field}: this server has no shared memory regions", param=field)


def _tensor(given: _Input, where: str, raw: bytes | None) -> Tensor:
    try:
        if raw is not None:
            return Tensor(given.datatype, tuple(given.shape), raw)
        if given.data is UNSET:
            raise InvalidArgument("data: required")
        return Tensor.of(given.datatype, given.shape, _flat(given.data, given.shape))
    except InvalidArgument as exc:
        raise InvalidArgument(f"{where}.{exc}", param=f"{where}.{str(exc).partition(':')[0]}") from None


def _flat(data: list[Any], shape: list[int]) -> list[Any]:
    """Nested as the shape, or flat already."""
    if len(shape) < 2 or not any(isinstance(value, list) for value in data):
        return data
    level: list[Any] = [data]
    for size in shape:
        if any(not isinstance(row, list) or len(row) != size for row in level):
            raise InvalidArgument(f"data: expected lists nested as {shape}, or one flat list")
        level = list(chain.from_iterable(level))
    return level


def _truth(value: Parameter, field: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{field}: expected true or false, got {value!r}", param=field)
    return value


def _json_values(name: str, tensor: Tensor) -> list[Any]:
    try:
        if tensor.datatype == BYTES:
            return [element.decode() for element in tensor.elements]
        values = tensor.values
        if tensor.datatype in FLOATS and not all(map(math.isfinite, values)):
            raise InvalidArgument("an infinity or no number")
        return values
    except (UnicodeDecodeError, InvalidArgument) as exc:
        raise InvalidArgument(
            f"outputs: {name!r} holds {tensor.datatype} that JSON cannot ({exc}); "
            f"ask for it with {BINARY}: true"
        ) from exc
