"""OpenAI's wire format: structs of the bodies and pure mapping to and from `llm/`. One file per endpoint.

`ENDPOINTS` is what a path's last part selects; a new endpoint is a file here and a row there.
"""

from ovserve.openai.chat import ChatCompletions
from ovserve.openai.completions import Completions
from ovserve.openai.endpoint import Endpoint

ENDPOINTS: dict[str, Endpoint] = {"chat/completions": ChatCompletions(), "completions": Completions()}

__all__ = ["ENDPOINTS", "Endpoint"]
