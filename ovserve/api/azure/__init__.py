"""Azure AI Model Inference: OpenAI's chat with other routing, extra fields and other errors.

`kinds/text/endpoints.py` joins it with the other API styles; `http/routes/azure.py` has the paths. The root
path `/chat/completions` is also OpenAI's (some clients post to the bare address); it counts as Azure's when
the request carries what only Azure's clients send: see `shape.py`.
"""

from ovserve.api.azure.chat import MODES, AzureChat

ENDPOINTS = {endpoint.name: endpoint for endpoint in map(AzureChat, MODES)}

__all__ = ["ENDPOINTS"]
