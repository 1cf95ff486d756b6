"""Every endpoint of every dialect by name: the one place where the dialects meet.

Read by the front end (which decodes) and the way out (which writes); a front in `http/` names the endpoint in
its HttpPayload. A new dialect is a package beside `api/azure/` and a line here.
"""

from __future__ import annotations

from ovserve.api import anthropic, azure, openai
from ovserve.api.openai.endpoint import TextEndpoint

ENDPOINTS: dict[str, TextEndpoint] = {**openai.ENDPOINTS, **azure.ENDPOINTS, **anthropic.ENDPOINTS}
