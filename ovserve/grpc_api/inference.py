"""inference.GRPCInferenceService: each call of KServe and Triton, translated to `services/inference/` and
back.

The behaviour of a call is defined in `services/inference/`, which the REST form shares.

Messages of infer calls become `api/kserve/`'s structs. Tensors come as raw bytes (raw_input_contents, one for
each input) or as typed contents, never as both. They are always returned as raw bytes, as Triton and OVMS do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from ovserve.api.kserve import InferFailure, InferRequest, InferResponse, Parameter, Tensor
from ovserve.api.kserve.json_body import refuse_shared_memory, unknown_parameters
from ovserve.api.kserve.tensor import display, received
from ovserve.api.openai.body import BodyBounds, over
from ovserve.errors import InvalidArgument, Unimplemented, public
from ovserve.grpc_api.errors import sentence
from ovserve.grpc_api.service import Context, Method
from ovserve.protos import kserve_pb2 as pb
from ovserve.services.inference.administration import NO_SHARED_MEMORY, NO_TRACES, Administration
from ovserve.services.inference.infer import Inference, infer_stream
from ovserve.telemetry.metrics import GRPC, MODEL_METADATA, MODEL_READY

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
        raise InvalidArgument.at(
            "raw_input_contents", f"expected one for each of {len(message.inputs)} inputs, got {len(raw)}"
        )
    tensors: dict[str, Tensor] = {}
    ignored: list[str] = []
    for i, entry in enumerate(message.inputs):
        where = f"inputs[{i}]"
        if entry.name in tensors:
            raise InvalidArgument.at(f"{where}.name", f"{display(entry.name)} is given twice")
        refuse_shared_memory(entry.parameters, where)
        try:
            tensors[entry.name] = _tensor(entry, raw[i] if raw else None)
        except InvalidArgument as exc:
            raise InvalidArgument(f"{where}.{exc}", param=where) from None
        ignored += unknown_parameters(where, entry.parameters)
    for i, output in enumerate(message.outputs):
        refuse_shared_memory(output.parameters, f"outputs[{i}]")
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


def _parameters(message: Mapping[str, Any], field: str = "parameters") -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for key, value in message.items():
        choice = value.WhichOneof("parameter_choice")
        if choice is None:
            raise InvalidArgument.at(f"{field}.{key}", "has no value")
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


Infer = pb.ModelInferRequest | bytes  # bytes if it is large, see `service.py`
_Repository = pb.RepositoryModelLoadRequest | pb.RepositoryModelUnloadRequest


def _refusing(why: str) -> Method:
    async def reject(request: object) -> None:
        raise Unimplemented(why)

    return reject


class InferenceService:
    """The service, with a method for each call under its name."""

    def __init__(self, administration: Administration, inference: Inference) -> None:
        self._administration, self._inference = administration, inference

    async def ServerLive(self, request: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._administration.ready)

    async def ModelReady(self, request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        with self._administration.counted(request.name, GRPC, MODEL_READY):
            return pb.ModelReadyResponse(
                ready=self._administration.model_ready(request.name, request.version)
            )

    async def ServerMetadata(self, request: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        server = self._administration.server
        return pb.ServerMetadataResponse(
            name=server.name, version=server.version, extensions=server.extensions
        )

    async def ModelMetadata(self, request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        with self._administration.counted(request.name, GRPC, MODEL_METADATA):
            document = self._administration.metadata(request.name, request.version)
        return ParseDict(document, pb.ModelMetadataResponse(), ignore_unknown_fields=True)

    async def ModelInfer(self, request: Infer) -> pb.ModelInferResponse:
        infer = await self._decode(request)
        if isinstance(infer, InferFailure):
            raise infer.error
        return to_message(await self._inference.infer(infer, GRPC))

    async def _decode(self, message: Infer) -> InferRequest | InferFailure:
        bodies = self._inference.bodies
        return await bodies.run(isinstance(message, bytes), read_message, message, bodies.bounds)

    async def ModelStreamInfer(self, requests: AsyncIterator[Infer], context: Context) -> None:
        async def send(item: InferResponse | InferFailure) -> None:
            await context.write(_stream_message(item))

        await infer_stream(self._inference, self._decode_all(requests), send)

    async def _decode_all(self, requests: AsyncIterator[Infer]) -> AsyncIterator[InferRequest | InferFailure]:
        async for message in requests:
            yield await self._decode(message)

    async def ModelConfig(self, request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        config = self._administration.config(request.name, request.version)
        return ParseDict({"config": config}, pb.ModelConfigResponse())

    async def ModelStatistics(self, request: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        statistics = self._inference.model_statistics(request.name, request.version)
        return ParseDict(statistics, pb.ModelStatisticsResponse())

    async def RepositoryIndex(self, request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        response = pb.RepositoryIndexResponse()
        for row in self._administration.index(ready=request.ready, repository=request.repository_name):
            response.models.add(**row._asdict())
        return response

    async def RepositoryModelLoad(
        self, request: pb.RepositoryModelLoadRequest
    ) -> pb.RepositoryModelLoadResponse:
        name, kserves = _model_of(request)
        await self._administration.load(name, _parameters(request.parameters))
        if not kserves:
            return pb.RepositoryModelLoadResponse()
        return pb.RepositoryModelLoadResponse(model_name=name, isLoaded=True)

    async def RepositoryModelUnload(
        self, request: pb.RepositoryModelUnloadRequest
    ) -> pb.RepositoryModelUnloadResponse:
        name, kserves = _model_of(request)
        await self._administration.unload(name, _parameters(request.parameters))
        if not kserves:
            return pb.RepositoryModelUnloadResponse()
        return pb.RepositoryModelUnloadResponse(model_name=name, isUnloaded=True)

    async def LogSettings(self, request: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
        response = pb.LogSettingsResponse()
        changes = _parameters(request.settings, "settings")
        for name, value in self._administration.log_settings(changes).items():
            target = response.settings[name]
            if isinstance(value, bool):
                target.bool_param = value
            else:
                target.uint32_param = int(value)
        return response

    SystemSharedMemoryStatus = SystemSharedMemoryRegister = SystemSharedMemoryUnregister = staticmethod(
        _refusing(NO_SHARED_MEMORY)
    )
    CudaSharedMemoryStatus = CudaSharedMemoryRegister = CudaSharedMemoryUnregister = staticmethod(
        _refusing(NO_SHARED_MEMORY)
    )
    TraceSetting = staticmethod(_refusing(NO_TRACES))


def _model_of(request: _Repository) -> tuple[str, bool]:
    """Return the model's name, and whether KServe's Python client sent it. Its message has the name where
    Triton's has the repository's, and nothing else.
    """
    if request.model_name or not request.repository_name:
        if request.repository_name:
            raise InvalidArgument.at(
                "repository_name", f"there is one repository, without a name; got {request.repository_name!r}"
            )
        return request.model_name, False
    return request.repository_name, True


def _stream_message(item: InferResponse | InferFailure) -> pb.ModelStreamInferResponse:
    if isinstance(item, InferResponse):
        return pb.ModelStreamInferResponse(infer_response=to_message(item))
    # The id identifies the request on the stream.
    message = pb.ModelStreamInferResponse(error_message=sentence(public(item.error)))
    message.infer_response.id = item.id
    return message
