"""KServe's REST form: a JSON object, with the tensors' elements in it or, by the binary extension, behind it.

With the extension a body is the JSON and then the raw bytes of each tensor that has a `binary_data_size`, in
order; the header Inference-Header-Content-Length says where the JSON ends.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from ovserve.api.kserve.tensor import BYTES, DATATYPES, FLOATS, Tensor, count_of, display, received
from ovserve.api.openai.body import decode_body
from ovserve.api.openai.common import encode
from ovserve.api.openai.operation import doc
from ovserve.errors import InvalidArgument, OvserveError

# KServe v2 infer requests and responses, independent of the transport.
#
# `http/` and `grpc_api/` make them and `serving/` acts on them. They are also the packets of a graph that
# takes whole requests (tags REQUEST and RESPONSE).


Parameter = bool | int | float | str


def unknown_parameters(where: str, names: Iterable[str], supported: Container[str] = ()) -> Iterator[str]:
    """Yield the paths of a tensor's parameters that mean nothing, such as `outputs[0].parameters.odd`."""
    return (f"{where}.parameters.{name}" for name in names if name not in supported)


def as_whole(value: Any) -> int | None:
    """The integer that a parameter is; 5.0 is one too, because some clients know floats only. Else None."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class InferRequest:
    """`outputs` are the names asked for; empty means all. An input with a fault is for Python nodes only."""

    model: str
    inputs: Mapping[str, Tensor]
    version: str = ""
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()  # parameters of its tensors that mean nothing here

    def check_inputs(self, loose: Container[str] = ()) -> None:
        """Raise InvalidArgument for the first input with a fault whose name is not in `loose`."""
        for i, (name, tensor) in enumerate(self.inputs.items()):
            if tensor.fault is not None and name not in loose:
                where = f"inputs[{i}]"
                raise InvalidArgument(
                    f"{where}.{tensor.fault}", param=f"{where}.{str(tensor.fault).partition(':')[0]}"
                )


@dataclass(frozen=True)
class InferResponse:
    """A response without outputs is the empty last one that Triton's streaming clients may ask for."""

    outputs: Mapping[str, Tensor]
    model: str = ""
    version: str = ""
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


class InferFailure(msgspec.Struct, frozen=True):
    """A request of a stream that ends without a (further) response; the stream goes on."""

    id: str
    error: OvserveError


# Bodies.

HEADER_LENGTH = "Inference-Header-Content-Length"
KEPT, KEPT_BYTES = 256, 2048  # heads of bodies that are kept decoded, and the longest
BYTES_PER_NUMBER = 128  # bytes of text that take as long to write as a number
BINARY_SIZE, BINARY, BINARY_ALL = "binary_data_size", "binary_data", "binary_data_output"
SHARED_MEMORY = "shared_memory_region"


class InferInput(msgspec.Struct):
    name: Annotated[str, doc("That of the graph's input stream.")]
    datatype: Annotated[str, doc("`FP32`, `INT64`, `BYTES` and so on.")]
    shape: Annotated[list[int], doc("The size of each dimension.")]
    data: Annotated[list[Any] | None, doc("The elements, nested as the shape or flat; BYTES as text.")] = None
    parameters: Annotated[
        dict[str, Parameter] | None,
        doc("`binary_data_size`: the elements are that many bytes behind the JSON, instead of `data`."),
    ] = None


class InferOutput(msgspec.Struct):
    name: Annotated[str, doc("That of the graph's output stream.")]
    parameters: Annotated[dict[str, Parameter] | None, doc("`binary_data`: behind the JSON, or in it.")] = (
        None
    )


class InferBody(msgspec.Struct):
    inputs: Annotated[
        list[InferInput], doc("Tensors by name; of an LLM graph one, whose element is the body to POST.")
    ]
    id: Annotated[str | None, doc("Repeated in the answer.")] = None
    parameters: Annotated[
        dict[str, Parameter] | None,
        doc(
            "`binary_data_output`: all outputs behind the JSON. For an LLM graph, `endpoint`: the API that "
            "the body is for. For a graph of tensors, `OVMS_MP_TIMESTAMP` and its input_side_packets."
        ),
    ] = None
    outputs: Annotated[list[InferOutput] | None, doc("Those wanted; all if empty.")] = None


class AnsweredOutput(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    data: list[Any] | UnsetType = UNSET
    parameters: dict[str, Parameter] | UnsetType = UNSET


class InferAnswer(msgspec.Struct):
    model_name: str
    model_version: str
    outputs: list[AnsweredOutput]
    id: str | UnsetType = UNSET
    parameters: dict[str, Parameter] | UnsetType = UNSET


_decoder = msgspec.json.Decoder(InferBody)


def _decode(body: bytes) -> tuple[InferBody, tuple[str, ...]]:
    """Return the struct, which is only read, and the names of the fields that it does not know."""
    document, fields = decode_body(body, _decoder)
    return document, tuple(sorted(fields))


_decode_head = lru_cache(KEPT)(_decode)  # errors are not kept


class RequestedOutput(NamedTuple):
    """Choose the outputs that go behind the JSON: the named ones, and the others as `others` says."""

    binary_by_name: Mapping[str, bool]
    others: bool = False

    def binary(self, name: str) -> bool:
        return self.binary_by_name.get(name, self.others)


class DecodedInfer(NamedTuple):
    request: InferRequest
    requested: RequestedOutput
    ignored: tuple[str, ...]  # fields of the body that mean nothing here


def decode_infer(
    model: str, version: str, body: bytes, header_length: str | None, *, views: bool = False
) -> DecodedInfer:
    """Raises InvalidArgument that names the field, e.g. `inputs[0].data`.

    With `views` binary tensors refer to the body; without, they can be sent to another process.
    """
    end = header_end(header_length, len(body))
    # Clients that send tensors behind the JSON repeat it: the same names and shapes, often for hours.
    document, fields = (_decode_head if end <= KEPT_BYTES and end < len(body) else _decode)(body[:end])
    raw, at, tensors, ignored = memoryview(body), end, dict[str, Tensor](), list[str]()
    for i, entry in enumerate(document.inputs):
        where = f"inputs[{i}]"
        refuse_shared_memory(entry.parameters or {}, where)
        try:
            size = _binary_size(entry, len(body) - at, alone=len(document.inputs) == 1)
            if entry.name in tensors:
                raise InvalidArgument(f"name: {display(entry.name)} is given twice")
            data = None if size is None else raw[at : at + size]
            tensors[entry.name] = _tensor(entry, data if views or data is None else bytes(data))
        except InvalidArgument as exc:
            raise InvalidArgument(f"{where}.{exc}", param=f"{where}.{str(exc).partition(':')[0]}") from None
        ignored += unknown_parameters(where, entry.parameters or (), (BINARY_SIZE,))
        at += size or 0
    if at != len(body):
        raise InvalidArgument(f"the body has {len(body) - at} bytes that belong to no input's {BINARY_SIZE}")
    parameters = dict(document.parameters or {})
    others = _truth(parameters.pop(BINARY_ALL, False), f"parameters.{BINARY_ALL}")
    binary = {}
    for i, output in enumerate(document.outputs or ()):
        output_parameters = output.parameters or {}
        refuse_shared_memory(output_parameters, f"outputs[{i}]")
        ignored += unknown_parameters(f"outputs[{i}]", output_parameters, (BINARY,))
        binary[output.name] = _truth(
            output_parameters.get(BINARY, others), f"outputs[{i}].parameters.{BINARY}"
        )
    request = InferRequest(
        model, tensors, version, document.id or "", parameters, tuple(binary), tuple(ignored)
    )
    return DecodedInfer(request, RequestedOutput(binary, others), fields)


def encode_infer(response: InferResponse, requested: RequestedOutput) -> tuple[bytes, int | None]:
    """The body, and the length of its JSON part when binary data follows."""
    outputs, behind = [], []
    for name, tensor in response.outputs.items():
        row = AnsweredOutput(name, tensor.datatype, list(tensor.shape))
        if requested.binary(name):
            row.parameters = {BINARY_SIZE: len(tensor.data)}
            behind.append(tensor.data)
        else:
            row.data = _json_values(name, tensor)
        outputs.append(row)
    parameters = dict(response.parameters) or UNSET
    head = encode(InferAnswer(response.model, response.version, outputs, response.id or UNSET, parameters))
    return (b"".join([head, *behind]), len(head)) if behind else (head, None)


def json_elements(response: InferResponse, requested: RequestedOutput) -> int:
    """Count the elements in the JSON of the answer."""
    tensors = (tensor for name, tensor in response.outputs.items() if not requested.binary(name))
    return sum(math.prod(tensor.shape) + len(tensor.data) // BYTES_PER_NUMBER for tensor in tensors)


def header_end(header_length: str | None, size: int) -> int:
    """Return the length of the JSON part of a body. Raises InvalidArgument."""
    if header_length is None:
        return size
    digits = header_length.isascii() and header_length.isdigit() and len(header_length) < 19
    if not digits or int(header_length) > size:
        raise InvalidArgument(
            f"{HEADER_LENGTH}: expected 0 to {size}, the size of the body, got {display(header_length)}"
        )
    return int(header_length)


def _binary_size(entry: InferInput, remaining: int, *, alone: bool) -> int | None:
    size_field = (entry.parameters or {}).get(BINARY_SIZE)
    if size_field is None and entry.data is None and remaining:
        # Clients of OVMS leave it out where the shape says it, or where an only input is all of the rest.
        kind = DATATYPES.get(entry.datatype)
        by_shape = count_of(entry.shape) * kind.size if kind and kind.size else None
        size_field = remaining if by_shape is None and alone else by_shape
    if size_field is None:
        return None
    size = as_whole(size_field)
    if size is None or not 0 <= size <= remaining:
        expected = f"expected 0 to {remaining}, what is left of the body"
        raise InvalidArgument(f"parameters.{BINARY_SIZE}: {expected}, got {display(size_field)}")
    if entry.data is not None:
        raise InvalidArgument("data: given twice, here and behind the JSON")
    return size


def refuse_shared_memory(parameters: Mapping[str, Any], where: str) -> None:
    if SHARED_MEMORY in parameters:
        raise InvalidArgument.at(
            f"{where}.parameters.{SHARED_MEMORY}", "this server has no shared memory regions"
        )


def _tensor(entry: InferInput, raw: bytes | memoryview | None) -> Tensor:
    if raw is not None:
        return received(entry.datatype, tuple(entry.shape), raw)
    if entry.data is None:
        raise InvalidArgument("data: required")
    return Tensor.of(entry.datatype, entry.shape, _flat(entry.data))


def _flat(data: list[Any]) -> list[Any]:
    """Return the elements. As in OVMS, Triton and KServe, only their number has to be that of the shape."""
    while data and all(isinstance(value, list) for value in data):
        data = list(chain.from_iterable(data))
    return data


def _truth(value: Parameter, field: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument.expected(field, "true or false", value)
    return value


def _json_values(name: str, tensor: Tensor) -> list[Any]:
    try:
        if tensor.datatype == BYTES:
            return [element.decode() for element in tensor.elements]
        if tensor.datatype not in DATATYPES:
            raise InvalidArgument("a datatype that is not KServe's")
        values = tensor.values
        if tensor.datatype in FLOATS and not all(map(math.isfinite, values)):
            raise InvalidArgument("an infinity or no number")
        return values
    except (UnicodeDecodeError, InvalidArgument) as exc:
        raise InvalidArgument(
            f"outputs: {name!r} holds {tensor.datatype[:64]} that JSON cannot ({exc}); "
            f"ask for it with {BINARY}: true"
        ) from exc
