"""OpenAI's wire format: structs of the bodies and pure mapping to and from `llm/`. One file per endpoint.

`ENDPOINTS` is what a path's last part selects, `OPERATIONS` what each says of itself (docs/api.md,
/openapi.json); a new endpoint is a file here and a row in both.
"""

from ovserve.api.openai import (
    batches,
    chat,
    completions,
    embeddings,
    fim,
    image_answers,
    models,
    speech,
    token_operations,
)
from ovserve.api.openai.audio import transcriptions
from ovserve.api.openai.chat import ChatCompletions
from ovserve.api.openai.completions import Completions
from ovserve.api.openai.describe.operation import Operation
from ovserve.api.openai.endpoint import TextEndpoint
from ovserve.api.openai.fim import FimCompletions
from ovserve.api.openai.responses import Responses
from ovserve.api.openai.responses import operations as responses

ENDPOINTS: dict[str, TextEndpoint] = {
    "chat/completions": ChatCompletions(),
    "completions": Completions(),
    "fim/completions": FimCompletions(),
    "responses": Responses(),
}

OPERATIONS: tuple[Operation, ...] = (
    chat.OPERATION,
    completions.OPERATION,
    fim.OPERATION,
    *responses.OPERATIONS,
    embeddings.OPERATION,
    *image_answers.OPERATIONS,
    *speech.OPERATIONS,
    *transcriptions.OPERATIONS,
    *token_operations.OPERATIONS,
    *models.OPERATIONS,
    *batches.OPERATIONS,
)

__all__ = ["ENDPOINTS", "OPERATIONS", "Endpoint", "Operation"]
