"""What Azure's paths say of themselves (`openai/operation.py`). The root path is OpenAI's too: `shape.py`."""

from __future__ import annotations

import dataclasses

from ovserve.azure.errors import UNPROCESSABLE, AzureError
from ovserve.azure.info import ModelInfo
from ovserve.azure.shape import CHAT, INFO
from ovserve.openai.chat import OPERATION
from ovserve.openai.common import ErrorBody
from ovserve.openai.operation import Operation

_QUERY = {"api-version": "any value makes it a request of Azure's"}

OPERATIONS = (
    dataclasses.replace(
        OPERATION,
        path=CHAT,
        summary="Azure AI Model Inference's chat if the request is Azure's, else as /v3/chat/completions.",
        error=(AzureError, ErrorBody),
        statuses=(UNPROCESSABLE,),
        query=_QUERY,
        optional=("model",),
    ),
    Operation(
        "GET", INFO, "What Azure's client asks first.", answer=ModelInfo, error=AzureError, query=_QUERY
    ),
)
