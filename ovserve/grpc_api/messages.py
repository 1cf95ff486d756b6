"""Convert Protobuf messages of infer calls to `api/kserve/`'s structs and back.

Tensors come as raw bytes (raw_input_contents, one for each input) or as typed contents, never as both. They
are always returned as raw bytes, as Triton and OVMS do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import DecodeError

from ovserve.api.kserve import InferFailure, InferRequest, InferResponse, Parameter, Tensor
from ovserve.api.kserve.infer import unknown_parameters
from ovserve.api.kserve.tensor import display, received
from ovserve.api.openai.bounds import BodyBounds, over
from ovserve.errors import InvalidArgument
from ovserve.protos import kserve_pb2 as pb

# The field of InferTensorContents for each datatype. FP16 and BF16 exist only as raw bytes.
CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
SHARED_MEMORY = "shared_memory_region"


def read_message(message: pb.ModelInferRequest | bytes, bounds: BodyBounds) -> InferRequest | InferFailure:
    """Return the parsed request, or what is wrong with it. A large message comes as bytes, in a body
    process."""
    id_ = ""
    try:
        if isinstance(message, bytes):
            message = _parsed(message)
        id_ = message.id
        _check_bounds(message, bounds)
        return to_request(message)
    except InvalidArgument as exc:
        return InferFailure(id_, exc)


def _parsed(data: bytes) -> pb.ModelInferRequest:
    try:
        return pb.ModelInferRequest.FromString(data)
    except DecodeError as exc:
        raise InvalidArgument(f"the request is not a ModelInferRequest: {exc}") from None


def _check_bounds(message: pb.ModelInferRequest, bounds: BodyBounds) -> None:
    """Check the bounds. Raises InvalidArgument that names the bound."""
    parameters = len(message.parameters)
    for field, count in (("inputs", len(message.inputs)), ("outputs", len(message.outputs))):
        if count > bounds.max_tensors:
            raise over(field, f"{count} elements", bounds.max_tensors, "tensors")
        parameters += sum(len(tensor.parameters) for tensor in getattr(message, field))
    if parameters > bounds.max_properties:
        raise over("parameters", f"{parameters} of them", bounds.max_properties, "properties")
    elements = sum(len(values) for tensor in message.inputs for _, values in tensor.contents.ListFields())
    if elements > bounds.max_json_nodes:
        raise over("inputs", f"{elements} elements in contents", bounds.max_json_nodes, "json_nodes")


def to_request(message: pb.ModelInferRequest) -> InferRequest:
    """Convert a message. Raises InvalidArgument that names the field, e.g. `inputs[0].shape`."""
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise InvalidArgument(
            f"raw_input_contents: expected one for each of {len(message.inputs)} inputs, got {len(raw)}",
            param="raw_input_contents",
        )
    tensors: dict[str, Tensor] = {}
    ignored: list[str] = []
    for i, entry in enumerate(message.inputs):
        where = f"inputs[{i}]"
        if entry.name in tensors:
            raise InvalidArgument(
                f"{where}.name: {display(entry.name)} is given twice", param=f"{where}.name"
            )
        _refuse_shared_memory(entry.parameters, where)
        try:
            tensors[entry.name] = _tensor(entry, raw[i] if raw else None)
        except InvalidArgument as exc:
            raise InvalidArgument(f"{where}.{exc}", param=where) from None
        ignored += unknown_parameters(where, entry.parameters)
    for i, output in enumerate(message.outputs):
        _refuse_shared_memory(output.parameters, f"outputs[{i}]")
        ignored += unknown_parameters(f"outputs[{i}]", output.parameters)
    return InferRequest(
        model=message.model_name,
        inputs=tensors,
        version=message.model_version,
        id=message.id,
        parameters=_parameters(message.parameters),
        outputs=tuple(output.name for output in message.outputs),
        ignored=tuple(ignored),
    )


def to_message(response: InferResponse) -> pb.ModelInferResponse:
    message = pb.ModelInferResponse(model_name=response.model, model_version=response.version, id=response.id)
    for key, value in response.parameters.items():
        _set(message.parameters[key], value)
    for name, tensor in response.outputs.items():
        message.outputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_output_contents.append(bytes(tensor.data))
    return message


def _tensor(entry: pb.ModelInferRequest.InferInputTensor, raw: bytes | None) -> Tensor:
    shape = tuple(entry.shape)
    filled = [field.name for field, _ in entry.contents.ListFields()]
    if raw is not None:
        if filled:
            raise InvalidArgument(f"contents.{filled[0]}: given together with raw_input_contents")
        return received(entry.datatype, shape, raw)
    field = CONTENTS.get(entry.datatype)
    if field is None:
        if entry.datatype in ("FP16", "BF16"):
            raise InvalidArgument(f"contents: {entry.datatype} goes into raw_input_contents")
        return Tensor(entry.datatype, shape, b"")  # rejects the datatype
    if wrong := [name for name in filled if name != field]:
        raise InvalidArgument(f"contents.{wrong[0]}: {entry.datatype} goes into {field}")
    return Tensor.of(entry.datatype, shape, getattr(entry.contents, field))


def _refuse_shared_memory(parameters: Mapping[str, Any], where: str) -> None:
    if SHARED_MEMORY in parameters:
        field = f"{where}.parameters.{SHARED_MEMORY}"
        raise InvalidArgument(f"{field}: this server has no shared memory regions", param=field)


def _parameters(message: Mapping[str, pb.InferParameter]) -> dict[str, Parameter]:
    parameters: dict[str, Parameter] = {}
    for key, value in message.items():
        choice = value.WhichOneof("parameter_choice")
        if choice is None:
            raise InvalidArgument(f"parameters.{key}: has no value", param=f"parameters.{key}")
        parameters[key] = getattr(value, choice)
    return parameters


def _set(target: pb.InferParameter, value: Parameter) -> None:
    if isinstance(value, bool):
        target.bool_param = value
    elif isinstance(value, int):
        target.int64_param = value
    elif isinstance(value, float):
        target.double_param = value
    else:
        target.string_param = value
