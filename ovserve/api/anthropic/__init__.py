"""Anthropic's Messages API as a dialect: the same engine request and the same parsed output in other clothes.

Built on the decoding, sampling and message forms of `api/openai/`; joined with the other dialects in
`kinds/text/resource.py`. `http/routes/v3.py` has the paths.
"""

from ovserve.api.anthropic.body import OPERATIONS
from ovserve.api.anthropic.messages import Messages

ENDPOINTS = {"messages": Messages()}

__all__ = ["ENDPOINTS", "OPERATIONS"]
