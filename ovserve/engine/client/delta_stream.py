"""The stream of one request's deltas, for the executor of a graph."""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from ovserve.engine.client.requests import InFlightRequest, Requests
from ovserve.errors import OvserveError
from ovserve.llm.request import Delta


class DeltaStream:
    """The answer to one request. The first delta is its admission; the last one is marked."""

    __slots__ = ("_ids", "_mailbox", "_requests")

    def __init__(self, requests: Requests, ongoing: InFlightRequest) -> None:
        self._requests = requests
        self._ids = ongoing.ids
        self._mailbox = ongoing.mailbox

    def when_admitted(self, call: Callable[[int], None]) -> None:
        """Set a callback for the prompt tokens. It is called again if the engine ends and another admits the
        request."""
        self._mailbox.on_admission = call

    def when_reading(self, call: Callable[[int], None]) -> None:
        """Set a callback for the prompt tokens still to compute, called a few times a second if known."""
        self._mailbox.on_unread = call

    def forget_calls(self) -> None:
        """Remove the callbacks, at the end."""
        self._mailbox.on_admission = self._mailbox.on_unread = None

    @property
    def held(self) -> int:
        """Return how many of its requests the engine has."""
        return self._requests.held_of(self._ids)

    def next(self) -> Coroutine[None, None, Delta]:
        """Return the next delta. Raises the error that ended the request: a kind from the engine, or
        EngineDead."""
        return self._mailbox.take()

    def fail(self, error: OvserveError) -> None:
        """End the request with this error, after the text that has arrived; no effect once it is complete."""
        self._mailbox.fail(error)
        self._requests.abort(self._ids)

    def abort_if_running(self) -> None:
        """Abort, any number of times, at any moment; text that has arrived can still be read."""
        self._requests.abort(self._ids)
