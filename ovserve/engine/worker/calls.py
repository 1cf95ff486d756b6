"""The calls of one loaded model, each on a thread, and the loop of an engine process that holds one model.

The main thread only reads, so a cancellation and a ping are noticed while calls run, as far as the backend's
library releases the interpreter lock. An exception of the backend is the failure of one call: unlike a step
of text generation, a call shares no state with others. A cancelled call also ends with Done, although its
caller has left, so that the server knows what still runs.

The pool of threads takes less per call than that of the standard library (about 20 us).
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, cast

import msgspec

from ovserve.engine.protocol.blobs import Blob, Segments
from ovserve.engine.protocol.call_backend import Beginner, CallBackend, Invocation, Outcome, Result
from ovserve.engine.protocol.frames import Channel, FrameError
from ovserve.engine.protocol.messages import (
    Call,
    Cancel,
    Demand,
    Done,
    Failed,
    Item,
    Ping,
    Pong,
    Ready,
    Stop,
    ToEngine,
)
from ovserve.errors import Internal, OvserveError

# BatchWindow: how long the engine waits for more requests before its next step.
#
# A step takes all requests that are there when it begins, and one that comes a moment later waits for its
# end: 17 ms if the others decode, 100 ms if they read prompts. Two moments are worth a short wait:
#
# - The engine was idle. The first request of a burst would have a step of its own and the rest would be one
#   step late. So the engine waits while requests come close together, until they have a step's worth of
#   prompt tokens; later ones would not have been in that step anyway. The server marks the last request that
#   it has at hand. After that one the wait is shorter, but not zero: the server has not seen what a client
#   has just sent, and a wrong guess costs a whole step.
# - A request finished. Clients that work in a loop (agents, batches, load generators) send the next one a
#   few milliseconds after the end of the previous one. Whether these clients do is learnt. Each wait in vain
#   doubles the number of occasions that are skipped before the next try. A successful wait resets it, and so
#   does idleness, because one load does not predict the next one. So a load without such clients pays
#   FOLLOW_UP_SECONDS once in MAX_SKIPPED occasions, and a few times at its beginning.

BURST_PAUSE = 0.003  # seconds of silence that end a burst
LAST_PAUSE = 0.001  # the same, after a request that is the last in hand
BURST_SECONDS = 0.02  # at most
FOLLOW_UP_SECONDS = 0.006
MAX_SKIPPED = 64


class BatchWindow:
    """One wait between two steps: `begin`, then `admitted` for each request and `pause` until it is 0."""

    def __init__(self, step_tokens: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`step_tokens`: most tokens of one step (max_num_batched_tokens)."""
        self._step_tokens = step_tokens
        self._clock = clock
        self._idle = self._last = False
        self._until = 0.0
        self._wanted = 0  # follow-ups worth waiting for
        self._requests = self._tokens = 0  # admitted since `begin`
        self._skip = self._to_skip = 0

    def begin(self, *, idle: bool, finished: int) -> None:
        """`idle`: the engine has slept until now. `finished`: requests that ended in the step before."""
        self._requests = self._tokens = 0
        self._idle = idle
        self._wanted = 0
        if idle:
            self._skip = self._to_skip = 0
            self._until = self._clock() + BURST_SECONDS
        elif finished:
            if self._to_skip:
                self._to_skip -= 1
                return
            self._wanted = finished
            self._until = self._clock() + FOLLOW_UP_SECONDS

    def admitted(self, prompt_tokens: int, *, last: bool = False) -> None:
        """`last`: the server has no other request in hand."""
        self._last = last
        self._requests += 1
        self._tokens += prompt_tokens

    def pause(self, *, received: bool, full: bool = False) -> float:
        """Seconds to wait for the next message; 0 to step now. `received`: one came since the last call;
        `full`: requests wait already for which the step has no room."""
        if full or self._tokens >= self._step_tokens:
            return self._end()
        remaining = self._until - self._clock()
        if remaining > 0 and self._idle and self._requests and received:
            return min(LAST_PAUSE if self._last else BURST_PAUSE, remaining)
        if remaining > 0 and self._requests < self._wanted:
            return remaining
        return self._end()

    def _end(self) -> float:
        if self._wanted:
            self._skip = 0 if self._requests else min(2 * self._skip + 1, MAX_SKIPPED)
            self._to_skip = self._skip
        return 0.0


class Threads:
    """Up to `most` threads, started when there is work and none is idle. They never end.

    Where the system lets no more be started, work waits for those there are. The first is always there.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._work: SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]] = SimpleQueue()
        self._lock = threading.Lock()
        self._pending = self._started = 0
        self._start()

    def submit(self, function: Callable[..., None], *arguments: Any) -> None:
        with self._lock:
            self._pending += 1
            if self._started < min(self._pending, self._most):
                with suppress(RuntimeError):  # "can't start new thread"
                    self._start()
        self._work.put((function, arguments))

    def _start(self) -> None:
        threading.Thread(target=self._run, name=f"call-{self._started + 1}", daemon=True).start()
        self._started += 1

    def _run(self) -> None:
        while True:
            function, arguments = self._work.get()
            try:
                function(*arguments)
            except BaseException:  # noqa: BLE001  the thread is for others too
                traceback.print_exc()
            del function, arguments  # they may hold a model
            with self._lock:
                self._pending -= 1


END = object()  # of a generator

Send = Callable[..., None]  # of any number of messages, in one write


class Calls:
    """The calls of one model that wait or run, `facts.max_calls` of them at a time.

    `pool` may be shared with other models, because each takes no more threads than it may. `send` is called
    from any thread. `name` is written above tracebacks.
    """

    def __init__(
        self, send: Send, backend: CallBackend, segments: Segments, pool: Threads, name: str = ""
    ) -> None:
        self._send = send
        self._backend: CallBackend | None = backend
        self._segments = segments
        self._pool = pool
        self._name = name
        self._free = max(1, backend.facts.max_calls)
        self._in_place = bool(getattr(backend, "in_place", False))
        self._begins = hasattr(backend, "begin")
        self._begun_calls = False  # since `began`
        self._held: dict[int, Sequence[Blob]] = {}  # values that are read in place
        self._live: dict[int, Invocation] = {}
        self._waiting: deque[tuple[int, Invocation]] = deque()
        self._lock = threading.Lock()
        self._when_closed: Callable[[], None] | None = None

    def start(self, call: Call) -> None:
        try:
            invocation = Invocation(call, self._segments, in_place=self._in_place)
        except OSError as error:
            self._segments.free(call.blobs)
            self._send(Failed(call.id, "internal", f"a value of the call is gone: {error}"))
            return
        invocation.fail = partial(self._fail, call.id)
        with self._lock:
            self._live[call.id] = invocation
            if self._in_place and call.blobs:
                self._held[call.id] = call.blobs
        if self._begins and self._begun(invocation):
            return
        with self._lock:
            if not self._free:
                self._waiting.append((call.id, invocation))
                return
            self._free -= 1
        self._pool.submit(self._work, call.id, invocation)

    def _begun(self, invocation: Invocation) -> bool:
        """Let the backend begin the call here; return False if it needs a thread."""
        if (backend := self._backend) is None:
            return False
        try:
            begun = cast(Beginner, backend).begin(invocation, self._deliver)
            self._begun_calls = self._begun_calls or begun
            return begun
        except OvserveError as error:
            self._deliver([(invocation, error)])
        except BaseException as error:  # noqa: BLE001  the worker loop border: a fault of the backend fails its call
            self._deliver([(invocation, self._fault(invocation, error))])
        return True

    def began(self) -> None:
        """Run the calls that the backend has begun; called when all that had arrived are started."""
        if self._begun_calls and (backend := self._backend) is not None:
            self._begun_calls = False
            cast(Beginner, backend).began()

    def _deliver(self, ended: Sequence[tuple[Invocation, Outcome]]) -> None:
        """Send how calls that were begun have ended, in one write."""
        messages: list[msgspec.Struct] = []
        for invocation, outcome in ended:
            messages.append(self._end(invocation.id, outcome))
            self._ended(invocation.id)
        self._send(*messages)
        self._end_if_idle()

    def _end(self, id_: int, outcome: Outcome) -> msgspec.Struct:
        if isinstance(outcome, OvserveError):
            return Failed.of(id_, outcome)
        try:
            return self._item(id_, outcome, last=True)
        except OvserveError as error:  # no memory is left for its values
            return Failed.of(id_, error)

    def _item(self, id_: int, result: Result, *, last: bool) -> Item:
        packed = self._segments.pack_all(result.blobs)
        return Item(id_, msgspec.msgpack.encode(result.value), packed, last)

    def _ended(self, id_: int) -> None:
        with self._lock:
            del self._live[id_]
            held = self._held.pop(id_, ())
        self._segments.free(held)

    def _fault(self, invocation: Invocation, error: BaseException) -> Internal:
        trace = "".join(traceback.format_exception(error))
        sys.stderr.write(f"{self._name}: {trace}" if self._name else trace)
        return Internal(f"{invocation.method} failed: {type(error).__name__}: {error}")

    def demand(self, id_: int) -> None:
        if (invocation := self._live.get(id_)) is not None:
            invocation.demand()

    def cancel(self, id_: int) -> None:
        if (invocation := self._live.get(id_)) is not None:
            invocation.cancel()

    def _fail(self, id_: int, error: OvserveError) -> None:
        """End a call for its caller; what it sends later is dropped there."""
        self._send(Failed.of(id_, error))

    def close(self, then: Callable[[], None]) -> None:
        """Cancel all calls, and let go of the backend when none runs any more. Then `then` is called, here or
        on a call's thread."""
        with self._lock:
            self._when_closed = then
            for invocation in self._live.values():
                invocation.cancel()
        self._end_if_idle()

    def _work(self, id_: int, invocation: Invocation) -> None:
        """Run this call and those that wait, until none does."""
        while True:
            self._run(id_, invocation)
            with self._lock:
                if not self._waiting:
                    self._free += 1
                    break
                id_, invocation = self._waiting.popleft()
        del invocation
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        with self._lock:
            if self._when_closed is None or self._live or self._backend is None:
                return
            backend, self._backend = self._backend, None
        _close(backend)
        del backend  # its memory is free before `then` says so
        self._when_closed()

    def _run(self, id_: int, invocation: Invocation) -> None:
        try:
            end: msgspec.Struct = self._answer(id_, invocation)
        except OvserveError as error:
            end = Failed.of(id_, error)
        except BaseException as error:  # noqa: BLE001  as above; a panic in Rust is not an Exception
            end = Failed.of(id_, self._fault(invocation, error))
        self._ended(id_)
        self._send(end)

    def _answer(self, id_: int, invocation: Invocation) -> msgspec.Struct:
        """Send the items of a call; return the message that ends it, which may be its last item."""
        backend = self._backend
        if invocation.cancelled or backend is None:
            return Done(id_)
        items: Any = backend.call(invocation)
        while True:
            invocation.wait_for_room()
            item = END if invocation.cancelled else next(items, END)
            if item is END or invocation.cancelled:
                return Done(id_)
            result = item if isinstance(item, Result) else Result(item)
            message = self._item(id_, result, last=result.last)
            if result.last:
                items.close()  # it may free what the values were made of
                return message
            self._send(message)


def _close(backend: CallBackend) -> None:
    """Call its `close`, if it has one: for what outlives the last reference, such as threads."""
    try:
        if (close := getattr(backend, "close", None)) is not None:
            close()
    except Exception:  # noqa: BLE001  a failing close() is logged, and the model is gone all the same
        traceback.print_exc()


def run(channel: Channel[ToEngine], backend: CallBackend, segments: Segments) -> int:
    sending = threading.Lock()

    def send(*messages: msgspec.Struct) -> None:
        with sending:
            channel.send(*messages)

    calls = Calls(send, backend, segments, Threads(max(1, backend.facts.max_calls)))
    send(Ready.of(backend.facts))
    while True:
        for message in channel.receive(block=True):
            if isinstance(message, Call):
                calls.start(message)
            elif isinstance(message, Demand):
                calls.demand(message.id)
            elif isinstance(message, Cancel):
                calls.cancel(message.id)
            elif isinstance(message, Ping):
                send(Pong())
            elif isinstance(message, Stop):
                _close(backend)
                return 0
            else:
                raise FrameError(f"{type(message).__name__} is not a message for an engine of calls")
        calls.began()
