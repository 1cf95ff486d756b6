"""RequestContext: one request to the server on any transport, with its caller and its usage.

A transport enters `calling` around all its work for the request. Tasks started inside inherit the context, a
background response included. Other code reads it with `current_request()`. It is a context variable and not
an argument, because the rule must hold even where code forgets it, and third-party calculators lie between.
Outside of any request there is none, and asking for it is an error. The server's own work (the first load, a
reload by the file watcher) declares itself with `as_system`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from ovserve.access.caller import ANYONE, SYSTEM, Caller
from ovserve.errors import OvserveError


class NodeTime:
    """The calls of one node for a request: their number, the seconds in them, begin of the first and end of
    the last. Both are values of `time.perf_counter()`."""

    __slots__ = ("began", "calls", "ended", "seconds")

    def __init__(self, began: float) -> None:
        self.began = self.ended = began
        self.calls = 0
        self.seconds = 0.0

    def add(self, began: float, ended: float) -> None:
        self.ended = ended
        self.calls += 1
        self.seconds += ended - began


NodeTimes = dict[str, NodeTime]


@dataclass(slots=True, eq=False)
class RequestContext:
    caller: Caller = ANYONE
    remote: str = ""  # address of the client, as the transport sees it
    model: str = ""  # the servable's name, once it is resolved
    prompt_tokens: int = 0
    generated_tokens: int = 0
    # of these, what calculators generated besides the answer
    other_prompt_tokens: int = 0
    other_generated_tokens: int = 0
    started: float = field(default_factory=time.monotonic)
    patience: float | None = None  # seconds after `started` that the client says it waits
    # Seconds after `started`: the prompt asks for room, the engine has taken it, the first token.
    queued: float | None = None
    admitted: float | None = None
    first_token: float | None = None
    cached_tokens: int | None = None  # of the prompt, in the prefix cache; None: not known
    # of the prompt, not computed yet; None: not known. It counts while there is no first token.
    unread_tokens: int | None = None
    drafted_tokens: int = 0  # of the answer, by speculative decoding
    accepted_tokens: int = 0
    nodes: NodeTimes | None = None  # set where requests are traced
    batch: bool = False  # a line of a batch: it takes the room that live requests leave
    repeated: bool = False  # its answer is generated again, because its engine ended
    error: OvserveError | None = None  # the response, in place of an answer
    # the error of a stream that failed after its status was sent
    failure: OvserveError | None = None
    asked: bool = False  # counted for its caller
    # Each ends some of the work for this request. Who begins it adds one, and removes it when it is done.
    ends: list[Callable[[OvserveError], None]] = field(default_factory=list)

    def count(self, prompt_tokens: int, generated_tokens: int) -> None:
        """Add the tokens of one delta of the answer."""
        if generated_tokens and self.first_token is None:
            self.first_token = time.monotonic() - self.started
        self.prompt_tokens += prompt_tokens
        self.generated_tokens += generated_tokens
        self.caller.spend(prompt_tokens + generated_tokens)

    @property
    def seconds_left(self) -> float | None:
        """Return the seconds that the client still waits for the answer to begin; None: it has not said."""
        limits = [s for s in (self.patience, self.caller.rights.queue_timeout) if s is not None]
        return min(limits) - (time.monotonic() - self.started) if limits else None

    def record_prefill(self, unread: int) -> None:
        """Record the tokens of the prompt that are still to be computed."""
        self.unread_tokens = unread

    def cancel(self, error: OvserveError) -> bool:
        """End what runs for this request with an error; return whether something did."""
        for end in tuple(self.ends):
            end(error)
        return bool(self.ends)

    def count_other(self, prompt_tokens: int, generated_tokens: int) -> None:
        """Add tokens that a calculator generated for itself; they are in the usage of the answer."""
        self.other_prompt_tokens += prompt_tokens  # which admission has counted for the caller
        self.other_generated_tokens += generated_tokens
        self.generated_tokens += generated_tokens
        self.caller.spend(generated_tokens)

    def take_other(self) -> tuple[int, int]:
        """Return prompt and generated tokens of calculators that no usage has shown yet."""
        counts = self.other_prompt_tokens, self.other_generated_tokens
        self.other_prompt_tokens = self.other_generated_tokens = 0
        return counts


class Answering:
    """One of the concurrent answers of a caller: to be entered around each run of a graph. A second run for
    one request is not counted again. A class, because a generator costs twice as much."""

    __slots__ = ("_call", "_caller", "_slot")

    def __init__(self, call: RequestContext) -> None:
        self._call = call

    def __enter__(self) -> None:
        """Raises RateLimited."""
        call = self._call
        self._caller = call.caller
        # Lines of batches leave the places to live requests; the runner bounds their number.
        self._slot = None if call.batch else self._caller.enter()
        try:
            if not call.asked:
                self._caller.ask(batch=call.batch)
                call.asked = True
        except BaseException:
            if self._slot is not None:
                self._caller.leave(self._slot, answered=False)
            raise

    def __exit__(self, *_: object) -> None:
        if self._slot is not None:
            self._caller.leave(self._slot, answered=True)


_call: ContextVar[RequestContext | None] = ContextVar("call", default=None)


def node_times() -> NodeTimes | None:
    """Return where calls of nodes are recorded; None outside of requests, and where none are traced."""
    request = _call.get()
    return request.nodes if request is not None else None


def has_begun() -> bool:
    """Return whether an engine has taken work of the current request; False outside of requests."""
    request = _call.get()
    return request is not None and request.admitted is not None


def current_request() -> RequestContext:
    """Return the current context.

    Raises RuntimeError outside of any: a transport that forgot to set the caller must not grant anything.
    """
    request = _call.get()
    if request is None:
        raise RuntimeError(
            "no request context: enter `calling(...)` for a client, `as_system()` for the server"
        )
    return request


class calling:
    __slots__ = ("_request", "_token")

    def __init__(self, call: RequestContext) -> None:
        self._request = call

    def __enter__(self) -> RequestContext:
        self._token = _call.set(self._request)
        return self._request

    def __exit__(self, *_: object) -> None:
        _call.reset(self._token)


@contextmanager
def as_system() -> Iterator[RequestContext]:
    """Enter around the server's own work. Start nothing inside that accepts connections: it would inherit the
    context."""
    with calling(RequestContext(SYSTEM)) as context:
        yield context
