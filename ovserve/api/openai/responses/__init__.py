"""POST responses: OpenAI's second API for text. A response is a list of items, a stream is named events.

`endpoint.py` maps a body to a GenerateRequest (`request.py` its fields, `items.py` the conversation,
`tools.py` the tools). `endpoint.py` turns parsed deltas into response events (`objects.py`), `fold.py` adds
them up to the response (`objects.py`), `encoder.py` encodes them for a client. `replay.py` streams a stored
response again. State is kept in `services/responses/service.py`; what reaches this package is the whole
conversation.
"""

from ovserve.api.openai.responses.endpoint import Responses
from ovserve.api.openai.responses.request import OPERATIONS

__all__ = ["OPERATIONS", "Responses"]
