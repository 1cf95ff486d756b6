"""tensorflow.serving.ModelService: the state of a model, and the reload of the configuration.

As in TensorFlow Serving, the outcome of a reload is in the response's status, not in gRPC's. A caller without
the right to reload gets gRPC's. In OVMS HandleReloadConfigRequest does nothing and answers OK.
"""

from __future__ import annotations

from typing import Any

from ovserve.errors import InvalidArgument, OvserveError, PermissionDenied, Unauthenticated
from ovserve.grpc_api.errors import sentence, status_of
from ovserve.grpc_api.service import Context
from ovserve.inference.administration import Administration, Entry
from ovserve.protos import tensorflow_error_pb2 as error_pb
from ovserve.protos import tensorflow_serving_pb2 as pb

LABELS = "versions have no labels: a graph has one version"


class ModelService:
    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    async def GetModelStatus(
        self, request: pb.GetModelStatusRequest, context: Context
    ) -> pb.GetModelStatusResponse:
        spec = request.model_spec
        if spec.version_label:
            raise InvalidArgument(f"model_spec.version_label: {LABELS}", param="model_spec.version_label")
        version = str(spec.version.value) if spec.HasField("version") else ""
        found = self._administration.status(spec.name, version)
        response = pb.GetModelStatusResponse()
        for one in found:
            row = response.model_version_status.add(version=one.version, state=one.state.value)
            row.status.error_code = error_pb.Code.Value(one.error_code)
            row.status.error_message = one.reason or "OK"
        return response

    async def HandleReloadConfigRequest(
        self, request: pb.ReloadConfigRequest, context: Context
    ) -> pb.ReloadConfigResponse:
        response = pb.ReloadConfigResponse()
        try:
            await self._reload(request)
        except (Unauthenticated, PermissionDenied):
            raise
        except OvserveError as exc:
            response.status.error_code = error_pb.Code.Value(status_of(exc).name)
            response.status.error_message = sentence(exc)
        return response

    async def _reload(self, request: pb.ReloadConfigRequest) -> None:
        if request.metric_names:
            raise InvalidArgument("metric_names: metrics are at /metrics", param="metric_names")
        given = request.config.WhichOneof("config")
        if given is None:
            await self._administration.reload()
        elif given == "model_config_list":
            rows = request.config.model_config_list.config
            await self._administration.replace(_entry(i, row) for i, row in enumerate(rows))
        else:
            raise InvalidArgument(
                "config.custom_model_config: unknown here; give a model_config_list",
                param=f"config.{given}",
            )


def _entry(index: int, row: pb.ModelConfig) -> Entry:
    """Convert a row. model_platform is ignored, because TensorFlow's tools require "tensorflow" there."""
    if row.version_labels:
        raise InvalidArgument(f"config[{index}].version_labels: {LABELS}", param="version_labels")
    given = row.model_version_policy
    kind = given.WhichOneof("policy_choice")
    policy: dict[str, Any] = {}
    if kind == "specific":
        policy = {kind: {"versions": list(given.specific.versions)}}
    elif kind == "latest":
        policy = {kind: {"num_versions": given.latest.num_versions or 1}}
    elif kind == "all":
        policy = {kind: {}}
    return Entry(row.name, row.base_path, policy)
