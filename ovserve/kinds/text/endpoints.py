"""Every endpoint of every API style by name: the one place where the styles meet.

Read by the node that decodes and the node that writes; a route in `http/` names the endpoint in
its HttpPayload. A new API style is a module or package next to `api/azure.py` and a line here.
"""

from __future__ import annotations

from ovserve.api import anthropic, azure, ollama, openai
from ovserve.api.openai.endpoint import TextEndpoint

ENDPOINTS: dict[str, TextEndpoint] = {
    **openai.ENDPOINTS,
    **azure.ENDPOINTS,
    **anthropic.ENDPOINTS,
    **ollama.ENDPOINTS,
}
