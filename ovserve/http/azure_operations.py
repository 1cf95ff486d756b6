"""Descriptions of Azure's paths. The root path is OpenAI's too: see `shape.py`."""

from __future__ import annotations

import dataclasses

from ovserve.api.azure.errors import UNPROCESSABLE_STATUS, AzureError
from ovserve.api.azure.info import ModelInfo
from ovserve.api.azure.shape import CHAT, DEPLOYMENTS, EMBEDDINGS, FOUNDRY, FOUNDRY_INFO, INFO, VERSION
from ovserve.api.openai import completions
from ovserve.api.openai.chat import OPERATION
from ovserve.api.openai.common import ErrorBody
from ovserve.api.openai.describe.operation import Operation
from ovserve.api.openai.models import Model
from ovserve.kinds.encoders import embeddings_api as embeddings

_QUERY = {VERSION: "any value makes it a request of Azure's"}
_ANY_VERSION = {VERSION: "any value, or none"}

_CHAT = dataclasses.replace(
    OPERATION,
    path=CHAT,
    summary="Azure AI Model Inference's chat if the request is Azure's, else as /v3/chat/completions.",
    error=(AzureError, ErrorBody),
    statuses=(UNPROCESSABLE_STATUS,),
    query=_QUERY,
    optional=("model",),
)


def _deployed(operation: Operation) -> Operation:
    return dataclasses.replace(
        operation,
        path=f"{DEPLOYMENTS}/{{deployment}}/{operation.name}",
        summary=f"As /v3/{operation.name}, of the model that the path names; Azure OpenAI's address.",
        query=_ANY_VERSION,
        optional=("model",),
        same_as=operation.name,
    )


OPERATIONS = (
    _CHAT,
    dataclasses.replace(
        _CHAT,
        path=FOUNDRY + CHAT,
        summary=f"As {CHAT} of Azure's, for base addresses that end in {FOUNDRY}.",
        error=AzureError,
        query=_ANY_VERSION,
        same_as=CHAT,
    ),
    dataclasses.replace(
        embeddings.OPERATION,
        path=EMBEDDINGS[0],
        summary="Azure AI Model Inference's embeddings if the request is Azure's, else as /v3/embeddings.",
        error=(AzureError, ErrorBody),
        statuses=(UNPROCESSABLE_STATUS,),
        query=_QUERY,
        optional=("model",),
        same_as="embeddings",
    ),
    dataclasses.replace(
        embeddings.OPERATION,
        path=FOUNDRY + EMBEDDINGS[0],
        summary=f"As {EMBEDDINGS[0]} of Azure's, for base addresses that end in {FOUNDRY}.",
        error=AzureError,
        query=_ANY_VERSION,
        optional=("model",),
        same_as="embeddings",
    ),
    _deployed(OPERATION),
    _deployed(embeddings.OPERATION),
    _deployed(completions.OPERATION),
    Operation(
        "GET",
        "/v3" + INFO,
        "What Azure's client asks first.",
        answer=ModelInfo,
        error=AzureError,
        query=_ANY_VERSION,
    ),
    Operation(
        "GET",
        FOUNDRY_INFO,
        f"The same if there is an {VERSION}, else the model that is called info.",
        answer=(ModelInfo, Model),
        error=(AzureError, ErrorBody),
        query=_QUERY,
    ),
)
