"""Limits on the content of a request's body, and the processes that decode large bodies.

`Bodies` is the interface of transports and calculators; `worker.py` is the other side.
"""

from ovserve.api.openai.body import UNREAD, Head
from ovserve.sandbox.bodies.bodies import Bodies

__all__ = ["UNREAD", "Bodies", "Head"]
