"""TensorFlow Serving's REST paths for plain models: predict, status, metadata."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from msgspec import Struct

from ovserve.api.kserve import InferRequest
from ovserve.api.openai.body import LOOP_NODES
from ovserve.api.openai.operation import Operation
from ovserve.api.tensorflow import InputType, Predict, PredictBody, decode_predict, encode_predict
from ovserve.errors import InvalidArgument, NotFound
from ovserve.http.body import BODIES, json_of, json_response, read_body
from ovserve.http.routes.config import ModelStatus, version_status
from ovserve.kinds.payload import ignored_header
from ovserve.services.inference.administration import Administration, End
from ovserve.services.inference.infer import Inference
from ovserve.telemetry.metrics import TENSORFLOW

SIGNATURE = "serving_default"
TYPES = {
    "FP16": "DT_HALF", "FP32": "DT_FLOAT", "FP64": "DT_DOUBLE", "BF16": "DT_BFLOAT16", "BYTES": "DT_STRING",
    "BOOL": "DT_BOOL", **{f"{u}INT{b}": f"DT_{u}INT{b}" for u in ("", "U") for b in (8, 16, 32, 64)},
}  # fmt: skip


class PredictAnswer(Struct):
    """One of the two, as the request was in rows or in columns."""

    predictions: Any = None
    outputs: Any = None


class TensorFlow:
    def __init__(self, administration: Administration, inference: Inference) -> None:
        self._administration, self._inference = administration, inference

    async def predict(self, request: web.Request) -> web.Response:
        name, version = _which(request)
        body, bodies = await read_body(request), request.app[BODIES]
        servable = self._inference.servable(name, version)
        if servable.model is None:
            raise InvalidArgument(f"model {name!r} is a graph: use /v2/models/{name}/infer", param="model")
        inputs = tuple(InputType(i.name, i.names, i.datatype) for i in servable.model.model.inputs)
        predict: Predict = await bodies.run(body.head.large, decode_predict, body.data, inputs)
        response = await self._inference.infer(InferRequest(name, predict.tensors, version), TENSORFLOW)
        large = sum(len(tensor.data) for tensor in response.outputs.values()) > LOOP_NODES
        encoded = await bodies.run(large, encode_predict, response.outputs, predict.rows)
        return json_response(encoded, ignored_header(predict.ignored))

    async def status(self, request: web.Request) -> web.Response:
        """Answer with the status of one version. The path without a version is OpenAI's."""
        statuses = self._administration.status(*_which(request))
        return json_of(ModelStatus([version_status(one) for one in statuses]))

    async def metadata(self, request: web.Request) -> web.Response:
        name, version = _which(request)
        model = self._administration.model(name, version)
        served = self._inference.servable(name, version).version
        signature = {"inputs": _ends(model.inputs), "outputs": _ends(model.outputs), "methodName": ""}
        return json_of(
            {
                "modelSpec": {"name": name, "signatureName": "", "version": served},
                "metadata": {
                    "signature_def": {
                        "@type": "type.googleapis.com/tensorflow.serving.SignatureDefMap",
                        "signatureDef": {SIGNATURE: signature},
                    }
                },
            }
        )


def _which(request: web.Request) -> tuple[str, str]:
    if "label" in request.match_info:
        raise NotFound(f"versions have no labels here; got {request.match_info['label']!r}")
    return request.match_info["model"], request.match_info.get("version", "")


def _ends(ends: tuple[End, ...]) -> dict[str, Any]:
    return {
        end.name: {
            "dtype": TYPES.get(end.datatype, "DT_INVALID"),
            "tensorShape": {
                "dim": [{"size": str(size), "name": ""} for size in end.shape],
                "unknownRank": False,
            },
            "name": end.name,
        }
        for end in ends
    }


MODEL = "/v1/models/{model:.+?}"
VERSIONS = ("/versions/{version:[^/:]+}", "/labels/{label:[^/:]+}", "")
_EXAMPLE = {"instances": [[1.0, 2.0]]}

OPERATIONS = (
    Operation(
        "POST",
        "/v1/models/{model}:predict",
        "TensorFlow Serving's predict on a plain model, in rows or in columns. See docs/plain-models.md.",
        request=PredictBody,
        answer=PredictAnswer,
        example=_EXAMPLE,
    ),
    Operation("POST", "/v1/models/{model}/versions/{version}:predict", "The same on one version."),
    Operation("POST", "/v1/models/{model}/labels/{label}:predict", "404: versions have no labels."),
    Operation("GET", "/v1/models/{model}/versions/{version}", "The state of a version.", answer=ModelStatus),
    Operation("GET", "/v1/models/{model}/labels/{label}", "404: versions have no labels."),
    *(
        Operation(
            "GET", f"/v1/models/{{model}}{version}/metadata", "Inputs and outputs.", answer=dict[str, Any]
        )
        for version in ("", "/versions/{version}", "/labels/{label}")
    ),
)
