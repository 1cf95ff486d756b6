"""OpenAI's wire format: structs of the bodies and pure mapping to and from `llm/`. One file per endpoint.

`ENDPOINTS` is what a path's last part selects, `OPERATIONS` what each says of itself (docs/api.md,
/openapi.json); a new endpoint is a file here and a row in both.
"""

from ovserve.openai import chat, completions, models, token_operations
from ovserve.openai.chat import ChatCompletions
from ovserve.openai.completions import Completions
from ovserve.openai.endpoint import Endpoint
from ovserve.openai.operation import Operation
from ovserve.openai.responses import Responses
from ovserve.openai.responses import operations as responses

ENDPOINTS: dict[str, Endpoint] = {
    "chat/completions": ChatCompletions(),
    "completions": Completions(),
    "responses": Responses(),
}

OPERATIONS: tuple[Operation, ...] = (
    chat.OPERATION,
    completions.OPERATION,
    *responses.OPERATIONS,
    *token_operations.OPERATIONS,
    *models.OPERATIONS,
)

__all__ = ["ENDPOINTS", "OPERATIONS", "Endpoint", "Operation"]
