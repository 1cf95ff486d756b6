"""RequestContext: one request to the server, by whichever transport, with who makes it and what it took.

A transport sets it with `calling` around everything it does for the request; tasks started inside inherit it,
a background response included. Others find it with `current_request()`: a context variable and not an
argument, because the rule has to hold also where it is forgotten, and calculators of third parties lie
between. Outside of any request there is none, and asking for it is an error: what the server does by itself
(the first load, a reload by the file watcher) says so with `as_system`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ovserve.access.caller import ANYONE, SYSTEM, Caller
from ovserve.errors import OvserveError


class RequestContext:
    __slots__ = (
        "_asked", "caller", "failure", "first_token", "generated_tokens", "model", "prompt_tokens",
        "repeated", "started",
    )  # fmt: skip

    def __init__(self, caller: Caller = ANYONE) -> None:
        self.caller = caller
        self.model = ""  # the servable's name, once it is found
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.started = time.monotonic()
        self.first_token: float | None = None  # seconds after `started`
        self.repeated = False  # its answer is made again, as an engine ended under it
        self.failure: OvserveError | None = None  # that ended a stream, whose status was sent before
        self._asked = False

    def count(self, prompt_tokens: int, generated_tokens: int) -> None:
        """What one delta of the answer adds."""
        if generated_tokens and self.first_token is None:
            self.first_token = time.monotonic() - self.started
        self.prompt_tokens += prompt_tokens
        self.generated_tokens += generated_tokens
        self.caller.spend(prompt_tokens + generated_tokens)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Around each run of a graph. Raises RateLimited. A second run of one call is no second request."""
        slot = self.caller.enter()
        answered = False
        try:
            if not self._asked:
                self.caller.ask()
                self._asked = True
            answered = True
            yield
        finally:
            self.caller.leave(slot, answered=answered)


_call: ContextVar[RequestContext | None] = ContextVar("call", default=None)


def current_request() -> RequestContext:
    """Raises RuntimeError outside of any: a transport that forgot to say who calls must not grant anything."""
    found = _call.get()
    if found is None:
        raise RuntimeError(
            "no request context: enter `calling(...)` for a client, `as_system()` for the server"
        )
    return found


@contextmanager
def calling(call: RequestContext) -> Iterator[RequestContext]:
    token = _call.set(call)
    try:
        yield call
    finally:
        _call.reset(token)


@contextmanager
def as_system() -> Iterator[RequestContext]:
    """For what the server does by itself. Start nothing inside that accepts connections: it would inherit."""
    with calling(RequestContext(SYSTEM)) as context:
        yield context
