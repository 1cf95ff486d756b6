"""Anthropic's Messages API as a dialect: the same engine request and the same parsed output in other clothes.

Built on the decoding, sampling and message forms of `openai/`; joined with the other dialects in
`calculators/endpoints.py`. `rest/anthropic.py` has the paths.
"""

from ovserve.anthropic.messages import Messages
from ovserve.anthropic.operations import OPERATIONS

ENDPOINTS = {"messages": Messages()}

__all__ = ["ENDPOINTS", "OPERATIONS"]
