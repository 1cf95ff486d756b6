"""The requests that an engine holds: where its messages go, how they ended, and which are sent again when the
engine ends.

A request whose reader has got nothing but the admission is sent to the next engine, once: only the delay is
visible. Every other request has been read in part, and ends with the error.

Suspects: when an engine ends, its request is sent to the next one once. A client can send the same request
anew, and so block a graph. Each end counts against the requests that the engine held: 2 points for one that
it held alone, 1 for one among others. From MAX_POINTS on, an equal request is rejected for SUSPECT_SECONDS.
An answer that completes clears its request. Ends that are not the engine's fault, such as a SIGKILL from
outside, do not count.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from ovserve.engine.client.mailbox import Mailbox
from ovserve.engine.client.state import InFlight, Listeners
from ovserve.engine.protocol.messages import Abort, Accepted, Add, Failed, StepItem, ToEngine
from ovserve.errors import EndsEngine, OvserveError, Unavailable, from_kind
from ovserve.llm.grammar.constraint import Constraint
from ovserve.llm.request import Delta, GenerateRequest
from ovserve.telemetry.metrics import RequestMetrics

ALONE_POINTS, SHARED_POINTS, MAX_POINTS = 2, 1, 3
SUSPECT_SECONDS = 600.0  # seconds after the last end
REMEMBERED_SUSPECTS = 256  # different requests

_ENCODE = msgspec.msgpack.Encoder().encode


class Suspects:
    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._held: list[bytes] = []  # held by the engine that ended last
        # points, and when they were given
        self._points: OrderedDict[bytes, tuple[int, float]] = OrderedDict()

    def check(self, adds: list[Add]) -> None:
        """Raise EndsEngine for a request that must not be sent."""
        if not self._points:
            return
        points, since = self._points.get(_digest(adds), (0, 0.0))
        remaining = since + SUSPECT_SECONDS - self._now()
        if points >= MAX_POINTS and remaining > 0:
            raise EndsEngine(
                "The engine ended more than once while it worked on this request, so it is not sent again "
                f"for {remaining:.0f} s. Change the request; the server's log has the reason."
            )

    def held(self, requests: Iterable[list[Add]]) -> None:
        """Record the requests of an engine that ended; the cause is not known yet."""
        self._held += [_digest(adds) for adds in requests]

    def ended(self, *, by_itself: bool) -> None:
        """Record how the engine ended, now that it is known."""
        held, self._held = set(self._held), []  # equal ones count once: many may ask the same at a time
        if not by_itself:
            return
        now = self._now()
        for digest in held:
            points, since = self._points.pop(digest, (0, now))
            if now - since >= SUSPECT_SECONDS:
                points = 0
            self._points[digest] = points + (ALONE_POINTS if len(held) == 1 else SHARED_POINTS), now
        while len(self._points) > REMEMBERED_SUSPECTS:
            self._points.popitem(last=False)

    def completed(self, adds: list[Add]) -> None:
        if self._points:
            self._points.pop(_digest(adds), None)


def _digest(adds: list[Add]) -> bytes:
    """Hash what makes requests equal: everything but their ids, and the seed, which is random by default."""
    hasher = hashlib.blake2b(digest_size=16)
    for add in adds:
        sampling = msgspec.structs.replace(add.sampling, seed=0)
        hasher.update(_ENCODE(msgspec.structs.replace(add, id=0, sampling=sampling, last=False)))
    return hasher.digest()


def engine_requests(
    request: GenerateRequest, first_id: int, *, last: bool = False, ids: Sequence[bytes] = ()
) -> list[Add]:
    """Beams stay with the engine; sampled choices become one request each.

    So each choice streams, and a grammar holds for each (the library enforces none when it samples several
    itself). `last`: see Add; `ids`: those of each prompt, if they were tokenized before.
    """
    sampling = request.sampling
    each = [sampling]
    if sampling.n > 1 and sampling.beams == 1:
        seeds = [(sampling.seed + i) % 2**64 for i in range(sampling.n)]
        each = [msgspec.structs.replace(sampling, n=1, seed=seed) for seed in seeds]
    special, images = request.add_special_tokens, request.images
    adds: list[Add] = []
    end = len(request.prompts) * len(each) - 1
    for prompt, of_it in zip(request.prompts, ids or [b""] * len(request.prompts), strict=True):
        for one in each:
            ends = last and len(adds) == end
            adds.append(Add(first_id + len(adds), prompt, special, one, images, ends, of_it, request.batch))
    return adds


class RequestTimeline:
    """The timeline of one request to an engine: a choice, or all its beams.

    It is updated where messages of the engine arrive, so a slow reader of the text does not make the engine
    look slow. A token costs one comparison and one observation. Times are `time.monotonic()` in seconds.
    """

    __slots__ = ("_admitted", "_arrived", "_first", "_last", "_meter", "prompt_tokens", "tokens")

    def __init__(self, meter: RequestMetrics, arrived: float) -> None:
        self._meter = meter
        self._arrived = arrived
        self._admitted = self._first = self._last = 0.0
        self.prompt_tokens = self.tokens = 0
        meter.in_engine += 1

    def admitted(self, prompt_tokens: int, now: float) -> None:
        """Record the admission. `prompt_tokens` is 0 where another choice of the same prompt has counted
        them."""
        meter = self._meter
        self._admitted = now
        if prompt_tokens:
            meter.prompt_tokens += prompt_tokens
            meter.queue_time.observe(now - self._arrived)
            meter.request_prompt_tokens.observe(prompt_tokens)

    def looked_up(self, prompt_tokens: int, cached_tokens: int | None) -> None:
        """Record a prefix cache lookup. `cached_tokens` is None without a cache, or if its hits are
        unknown."""
        if cached_tokens is not None:
            self._meter.prefix_queries += prompt_tokens
            self._meter.prefix_hits += cached_tokens

    def on_tokens(self, tokens: int, finish_reason: str | None, now: float) -> None:
        meter = self._meter
        if tokens:
            meter.generated_tokens += tokens
            if self.tokens:
                meter.between_tokens.observe((now - self._last) / tokens, tokens)
            else:
                self._first = now
                meter.first_token.observe(now - self._arrived)
                meter.prefill_time.observe(now - self._admitted)
            self.tokens += tokens
            self._last = now
        if finish_reason is not None:
            meter.finished[finish_reason] += 1

    def finish(self, now: float) -> None:
        """Record the last message of the request."""
        meter = self._meter
        meter.in_engine -= 1
        meter.latency.observe(now - self._arrived)
        meter.request_generated_tokens.observe(self.tokens)
        if self.tokens:
            meter.decode_time.observe(self._last - self._first)

    def drop(self) -> None:
        """Remove a request that failed or was aborted; its outcome is counted where the client's answer
        ends."""
        self._meter.in_engine -= 1

    def describe(self, now: float) -> str:
        """Return its state in words, for the report on a stalled engine."""
        if not self._admitted:
            return f"arrived {now - self._arrived:.1f} s ago, not admitted"
        since = f", the last {now - self._last:.1f} s ago" if self.tokens else ""
        return f"arrived {now - self._arrived:.1f} s ago, {self.tokens} tokens{since}"


class Route(NamedTuple):
    """The target of the messages of one engine request; a client's request may be several."""

    ongoing: DeltaStream
    mailbox: Mailbox
    choice: int  # index of its first choice
    add: Add
    first_of_prompt: bool  # prompt tokens count once, whatever the number of choices
    track: RequestTimeline


@dataclass(eq=False)
class DeltaStream:
    """One request of a client and its answer. The first delta is its admission; the last one is marked."""

    name: str  # the public id
    adds: list[Add]
    mailbox: Mailbox
    meter: RequestMetrics
    arrived: float
    constraint: Constraint | None
    choices: int  # choices per prompt
    repeated: bool  # its first engine has ended
    stall_timeout: float | None  # set by its graph; None: the server's, 0: never
    _requests: Requests

    @property
    def begun(self) -> bool:
        return self.mailbox.begun or self.mailbox.failed

    @property
    def ids(self) -> range:
        return range(self.adds[0].id, self.adds[-1].id + 1)

    @property
    def held(self) -> int:
        """Return how many of its requests the engine has."""
        return self._requests.held_of(self.ids)

    def next(self) -> Coroutine[None, None, Delta]:
        """Return the next delta. Raises the error that ended the request: a kind from the engine, or
        EngineDead."""
        return self.mailbox.take()

    def fail(self, error: OvserveError) -> None:
        """End the request with this error, after the text that has arrived; no effect once it is complete."""
        self.mailbox.fail(error)
        self._requests.abort(self.ids)

    def abort_if_running(self) -> None:
        """Abort, any number of times, at any moment; text that has arrived can still be read."""
        self._requests.abort(self.ids)


class Requests(InFlight[DeltaStream]):
    noun = "request"

    def __init__(self, send: Callable[[ToEngine], None], on_room: Listeners) -> None:
        super().__init__(send, on_room)
        self._routes: dict[int, Route] = {}
        self.suspects = Suspects()

    def __len__(self) -> int:
        return len(self._routes)

    def _held(self) -> list[DeltaStream]:
        return list(dict.fromkeys(route.ongoing for route in self._routes.values()))

    def held_of(self, ids: range) -> int:
        return sum(id_ in self._routes for id_ in ids)

    # ---- to the engine

    def begin(
        self,
        request: GenerateRequest,
        meter: RequestMetrics,
        arrived: float,
        *,
        repeated: bool,
        stall_timeout: float | None,
        last: bool = False,
        ids: Sequence[bytes] = (),
    ) -> DeltaStream:
        """Send it; `last` and `ids`: see `engine_requests`.

        Raises as frames.encode does when it cannot be sent, and EndsEngine for a request that ends engines.
        Nothing has begun then.
        """
        adds = engine_requests(request, self._last_id + 1, last=last, ids=ids)
        self.suspects.check(adds)
        self._last_id = adds[-1].id
        try:
            for add in adds:
                self._send(add)
        except BaseException:  # some may have been sent
            for add in adds:
                self._send(Abort(add.id))
            raise
        self.stats.requests += len(adds)
        sampling = request.sampling
        mailbox = Mailbox(len(request.prompts), request.choices, early=request.reports_admission)
        ongoing = DeltaStream(
            request.id,
            adds,
            mailbox,
            meter,
            arrived,
            sampling.constraint,
            sampling.n,
            repeated,
            stall_timeout,
            self,
        )
        self._route(ongoing)
        return ongoing

    def _route(self, ongoing: DeltaStream) -> None:
        for i, add in enumerate(ongoing.adds):
            width = add.sampling.n if add.sampling.beams > 1 else 1  # choices per engine request
            choice = i * width
            track = RequestTimeline(ongoing.meter, ongoing.arrived)
            first_of_prompt = choice % ongoing.choices == 0
            self._routes[add.id] = Route(ongoing, ongoing.mailbox, choice, add, first_of_prompt, track)

    def abort(self, ids: range) -> None:
        for id_ in ids:
            route = self._routes.pop(id_, None)
            if route is not None:
                self.stats.aborted += 1
                route.track.drop()
                route.mailbox.fail(Unavailable("the request was aborted"))
                self._send(Abort(id_))
                self._note(id_, route, "aborted")
        self._on_room.notify()

    # ---- messages of the engine; an id may be unknown if they crossed our Abort

    def on_tokens(self, items: list[StepItem]) -> None:
        routes, stats = self._routes, self.stats
        now = time.monotonic()
        for item in items:
            if (route := routes.get(item.id)) is not None:
                stats.generated_tokens += item.tokens
                stats.drafted_tokens += item.drafted
                stats.accepted_tokens += item.accepted
                route.track.on_tokens(item.tokens, item.finish_reason, now)
                route.mailbox.add(route.choice + item.index, item)
                if item.last:
                    del routes[item.id]
                    stats.finished += 1
                    route.track.finish(now)
                    self._note(item.id, route, "finished")
                    self.suspects.completed(route.ongoing.adds)
        if self._on_room:
            self._on_room.notify()

    def accepted(self, message: Accepted) -> None:
        if (route := self._routes.get(message.id)) is not None:
            counted = message.prompt_tokens if route.first_of_prompt else 0
            route.track.admitted(counted, time.monotonic())
            route.track.prompt_tokens = message.prompt_tokens
            route.track.looked_up(message.prompt_tokens, message.cached_tokens)
            if counted:
                self.stats.prompt_tokens += counted
                route.mailbox.admit(counted, message.max_tokens, message.cached_tokens)

    def on_prefill(self, to_prefill: Sequence[tuple[int, int]]) -> None:
        """Record how much of their prompts the engine has still to compute; it says so a few times a
        second."""
        pending: dict[Mailbox, int] = {}
        for id_, tokens in to_prefill:
            if (route := self._routes.get(id_)) is not None and route.first_of_prompt:
                pending[route.mailbox] = pending.get(route.mailbox, 0) + tokens
        for mailbox, tokens in pending.items():
            if mailbox.on_prefill is not None:
                mailbox.on_prefill(tokens)

    def failed(self, message: Failed) -> None:
        if (route := self._routes.pop(message.id, None)) is not None:
            self.stats.failed += 1
            route.track.drop()
            route.mailbox.fail(from_kind(message.kind, message.message, message.param))
            self._note(message.id, route, f"failed ({message.kind})")
            self.abort(route.ongoing.ids)  # the client gets the whole answer or an error, never half

    # ---- the end of an engine, and the next one

    def lost(self, reason: str) -> None:
        self.suspects.held(ongoing.adds for ongoing in self._lost())
        super().lost(reason)

    def _begin_again(self, one: DeltaStream) -> None:
        for id_ in one.ids:
            if (route := self._routes.get(id_)) is not None:
                route.track.drop()
            else:
                self.stats.finished -= 1  # this choice is generated again, with the others
        one.mailbox.restart()
        self._route(one)

    def waiting(self) -> Iterator[DeltaStream]:
        """Yield requests for the new engine, each for `resend`; requests whose client left are skipped."""
        # A grammar has to be compiled first; other requests do not wait for that.
        for ongoing in sorted(self._take_waiting(), key=lambda one: one.constraint is not None):
            if ongoing.adds[0].id in self._routes:
                yield ongoing

    def resend(self, ongoing: DeltaStream) -> None:
        for add in ongoing.adds:
            if add.id in self._routes:
                self._send(add)

    def end(self, one: DeltaStream, error: OvserveError) -> None:
        for id_ in one.ids:
            if (route := self._routes.pop(id_, None)) is not None:
                self.stats.failed += 1
                route.track.drop()
                self._note(id_, route, f"failed ({error.code or error.kind})")
        one.mailbox.fail(error)

    # ---- for the watchdog and the operator

    def patience(self, default: float) -> float:
        timeouts = [
            default if (own := route.ongoing.stall_timeout) is None else own
            for route in self._routes.values()
        ]
        return 0.0 if 0.0 in timeouts else max(timeouts, default=default)

    def prefill_tokens(self) -> int:
        return sum(r.track.prompt_tokens for r in self._routes.values() if not r.track.tokens)

    def _lines(self, now: float) -> list[str]:
        return [f"{id_} {r.ongoing.name}: {r.track.describe(now)}" for id_, r in self._routes.items()]

    def _note(self, id_: int, route: Route, how: str) -> None:
        self._ended.append(f"{id_} {route.ongoing.name}: {how}, {route.track.tokens} tokens")
