"""inference.GRPCInferenceService: each call of KServe and Triton, translated to `services/inference/` and
back.

The behaviour of a call is defined in `services/inference/`, which the REST form shares.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from ovserve.api.kserve import InferFailure, InferRequest, InferResponse, Parameter
from ovserve.api.kserve.tensor import BYTES
from ovserve.errors import InvalidArgument, Unimplemented, public
from ovserve.grpc_api.errors import sentence
from ovserve.grpc_api.messages import read_message, to_message
from ovserve.grpc_api.service import Context, Method
from ovserve.protos import kserve_pb2 as pb
from ovserve.protos import model_config_pb2 as config_pb
from ovserve.services.inference.administration import NO_SHARED_MEMORY, NO_TRACES, Administration
from ovserve.services.inference.infer import Inference
from ovserve.services.inference.infer_stream import infer_stream
from ovserve.services.inference.metadata import BACKEND, Description
from ovserve.telemetry.counters import GRPC, MODEL_METADATA, MODEL_READY

Infer = pb.ModelInferRequest | bytes  # bytes if it is large, see `service.py`
_Repository = pb.RepositoryModelLoadRequest | pb.RepositoryModelUnloadRequest


def _refusing(why: str) -> Method:
    async def reject(request: object, context: Context) -> None:
        raise Unimplemented(why)

    return reject


class InferenceService:
    """The service, with a method for each call under its name."""

    def __init__(self, model: Description, inference: Inference, administration: Administration) -> None:
        self._administration = administration
        self._description = model
        self._inference = inference

    async def ServerLive(self, request: pb.ServerLiveRequest, context: Context) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: pb.ServerReadyRequest, context: Context) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._description.ready)

    async def ModelReady(self, request: pb.ModelReadyRequest, context: Context) -> pb.ModelReadyResponse:
        with self._description.counted(request.name, GRPC, MODEL_READY):
            return pb.ModelReadyResponse(ready=self._description.model_ready(request.name, request.version))

    async def ServerMetadata(
        self, request: pb.ServerMetadataRequest, context: Context
    ) -> pb.ServerMetadataResponse:
        server = self._description.server
        return pb.ServerMetadataResponse(
            name=server.name, version=server.version, extensions=server.extensions
        )

    async def ModelMetadata(
        self, request: pb.ModelMetadataRequest, context: Context
    ) -> pb.ModelMetadataResponse:
        with self._description.counted(request.name, GRPC, MODEL_METADATA):
            model = self._description.model(request.name, request.version)
        response = pb.ModelMetadataResponse(name=model.name, versions=model.versions, platform=model.platform)
        for ends, target in ((model.inputs, response.inputs), (model.outputs, response.outputs)):
            for end in ends:
                target.add(name=end.name, datatype=end.datatype, shape=end.shape)
        return response

    async def ModelInfer(self, request: Infer, context: Context) -> pb.ModelInferResponse:
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

    async def ModelConfig(self, request: pb.ModelConfigRequest, context: Context) -> pb.ModelConfigResponse:
        model = self._description.model(request.name, request.version)
        config = config_pb.ModelConfig(name=model.name, platform=model.platform, backend=BACKEND)
        config.version_policy.specific.versions.extend(map(int, model.versions))
        config.model_transaction_policy.decoupled = model.decoupled
        for end in model.inputs:
            config.input.add(name=end.name, data_type=_config_type(end.datatype), dims=end.shape)
        for end in model.outputs:
            config.output.add(name=end.name, data_type=_config_type(end.datatype), dims=end.shape)
        return pb.ModelConfigResponse(config=config)

    async def ModelStatistics(
        self, request: pb.ModelStatisticsRequest, context: Context
    ) -> pb.ModelStatisticsResponse:
        response = pb.ModelStatisticsResponse()
        for name, version, counted in self._inference.counts(request.name, request.version):
            row = response.model_stats.add(name=name, version=version)
            row.last_inference = counted.last
            row.inference_count = row.execution_count = counted.success
            stats = row.inference_stats
            stats.success.count, stats.success.ns = counted.success, counted.success_ns
            stats.fail.count, stats.fail.ns = counted.fail, counted.fail_ns
        return response

    async def RepositoryIndex(
        self, request: pb.RepositoryIndexRequest, context: Context
    ) -> pb.RepositoryIndexResponse:
        response = pb.RepositoryIndexResponse()
        for row in self._administration.index(ready=request.ready, repository=request.repository_name):
            response.models.add(name=row.name, version=row.version, state=row.state, reason=row.reason)
        return response

    async def RepositoryModelLoad(
        self, request: pb.RepositoryModelLoadRequest, context: Context
    ) -> pb.RepositoryModelLoadResponse:
        name, kserves = _model_of(request)
        await self._administration.load(name, _repository_parameters(request))
        if not kserves:
            return pb.RepositoryModelLoadResponse()
        return pb.RepositoryModelLoadResponse(model_name=name, isLoaded=True)

    async def RepositoryModelUnload(
        self, request: pb.RepositoryModelUnloadRequest, context: Context
    ) -> pb.RepositoryModelUnloadResponse:
        name, kserves = _model_of(request)
        await self._administration.unload(name, _repository_parameters(request))
        if not kserves:
            return pb.RepositoryModelUnloadResponse()
        return pb.RepositoryModelUnloadResponse(model_name=name, isUnloaded=True)

    async def LogSettings(self, request: pb.LogSettingsRequest, context: Context) -> pb.LogSettingsResponse:
        changes: dict[str, Parameter] = {}
        for name, setting in request.settings.items():
            choice = setting.WhichOneof("parameter_choice")
            if choice is None:
                raise InvalidArgument(f"settings.{name}: has no value", param=name)
            changes[name] = getattr(setting, choice)
        response = pb.LogSettingsResponse()
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
            raise InvalidArgument(
                f"repository_name: there is one repository, without a name; got {request.repository_name!r}",
                param="repository_name",
            )
        return request.model_name, False
    return request.repository_name, True


def _repository_parameters(request: _Repository) -> dict[str, Parameter | bytes]:
    parameters: dict[str, Parameter | bytes] = {}
    for name, value in request.parameters.items():
        parameters[name] = getattr(value, value.WhichOneof("parameter_choice") or "bool_param")
    return parameters


def _config_type(datatype: str) -> config_pb.DataType.ValueType:
    """Return the name of a type in Triton's configuration, which differs from the protocol's."""
    return config_pb.DataType.Value("TYPE_STRING" if datatype == BYTES else f"TYPE_{datatype}")


def _stream_message(item: InferResponse | InferFailure) -> pb.ModelStreamInferResponse:
    if isinstance(item, InferResponse):
        return pb.ModelStreamInferResponse(infer_response=to_message(item))
    # The id identifies the request on the stream.
    message = pb.ModelStreamInferResponse(error_message=sentence(public(item.error)))
    message.infer_response.id = item.id
    return message
