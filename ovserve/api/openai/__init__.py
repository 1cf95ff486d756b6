"""OpenAI's wire format: structs of the bodies and pure mapping to and from `llm/`. One file per endpoint.

`ENDPOINTS` is what a path's last part selects. A new endpoint is a file here, a row in it, and its
`Operation` in `http/openapi.py`.
"""

from ovserve.api.openai.chat import ChatCompletions
from ovserve.api.openai.completions import Completions, FimCompletions
from ovserve.api.openai.operation import TextEndpoint
from ovserve.api.openai.responses import Responses

ENDPOINTS: dict[str, TextEndpoint] = {
    "chat/completions": ChatCompletions(),
    "completions": Completions(),
    "fim/completions": FimCompletions(),
    "responses": Responses(),
}

__all__ = ["ENDPOINTS"]
