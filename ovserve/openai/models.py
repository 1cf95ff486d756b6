"""GET models: the list of what is served, in OpenAI's shape."""

from __future__ import annotations

import msgspec

from ovserve.openai.common import encode


class Model(msgspec.Struct, kw_only=True):
    id: str
    object: str = "model"
    created: int  # unix seconds of the load
    owned_by: str = "ovserve"
    max_model_len: int | None  # tokens of context


class ModelList(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[Model]


def model_list(models: list[Model]) -> bytes:
    return encode(ModelList(data=models))


def model(one: Model) -> bytes:
    return encode(one)
