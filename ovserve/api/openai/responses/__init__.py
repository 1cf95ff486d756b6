"""POST responses: OpenAI's second text dialect: an answer is a list of items, a stream is named events.

`endpoint.py` maps a body to a GenerateRequest (`request.py` its fields, `items.py` the conversation,
`tools.py` the tools); `writer.py` makes events of parsed deltas (`events.py` their shapes, `objects.py` the
response); `replay.py` makes a stream of a stored response. State lives elsewhere,
in `responses/service.py`: what reaches this package is always the whole conversation.
"""

from ovserve.api.openai.responses.endpoint import Responses
from ovserve.api.openai.responses.operations import OPERATIONS

__all__ = ["OPERATIONS", "Responses"]
