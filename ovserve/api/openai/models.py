"""GET models: the list of what is served, in OpenAI's shape and with the state of each graph."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from ovserve.api.openai.common import encode
from ovserve.api.openai.operation import Operation, doc

STATES = ("LOADING", "AVAILABLE", "FAILED", "END")


class Model(msgspec.Struct, kw_only=True):
    id: Annotated[str, doc("what requests name as their model")]
    object: str = "model"
    created: Annotated[int, doc("unix seconds of the load")]
    owned_by: str = "ovserve"
    parent: Annotated[str | UnsetType, doc("of a LoRA adapter: the model it belongs to")] = UNSET
    max_model_len: Annotated[int | None, doc("tokens of context; null while unknown")] = None
    state: Annotated[  # ovserve.serving.servable.State
        str, doc("of the graph; 503 answers requests in others than AVAILABLE", enum=STATES)
    ]
    state_detail: Annotated[
        str | UnsetType, doc("unloaded: the next request loads it; loading: for requests that wait")
    ] = UNSET
    reason: Annotated[str | UnsetType, doc("why it is not available, where that is known")] = UNSET
    model_version_status: Annotated[
        list[dict[str, Any]] | UnsetType,
        doc("of a plain model asked for by name: its versions, in TensorFlow Serving's form"),
    ] = UNSET


class ModelList(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[Model]


OPERATIONS = (
    Operation(
        "GET",
        "/v3/models",
        "The graphs served, those that still load included; in Anthropic's shape with its anthropic-version.",
        answer=ModelList,
    ),
    Operation("GET", "/v3/models/{model}", "One of them, in either shape.", answer=Model),
)


def model_list(models: list[Model]) -> bytes:
    return encode(ModelList(data=models))


def model(one: Model) -> bytes:
    return encode(one)
