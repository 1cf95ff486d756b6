"""AdmissionController: admission control between the nodes of a graph and their engine.

It stands in for the engine, counts each request in its servable's metrics, and gives these guarantees:

- An engine with room gets a request at once. Otherwise it waits here, at most `max_queue` requests and
  `max_queue_tokens` prompt tokens; one more is rejected with `Retry-After`.
- A request that has waited here for `queue_timeout` is rejected. So is one that was handed to an engine that
  then sends nothing for as long. A neighbour's long prompt makes a request slow, never overdue. One that is
  not complete after `request_timeout` ends. The timers run in the event loop, so they also hold for an engine
  that hangs.

Requests wait here and not in the engine. There they are served in the order they came, whoever sent them,
cannot be counted or rejected, and are lost with the process. Room is `max_num_seqs` choices, and so many
prompt tokens without a first token that the engine's next steps are full anyway (PREFILL_STEPS). Prompts of
at most one step have that room for themselves, because the engine takes them in ahead of longer ones
(`engine/worker/admission_queue.py`); of longer ones, MIN_LONG_PROMPTS are admitted whatever their length.
Waiting requests are admitted together once half of that is done: a KV cache that grows as needed is copied
as a whole by every step that makes it grow, and one newcomer is enough for that (docs/performance.md).

Lines of batches are admitted where no live request waits or runs. The paged engine pauses those that it has
when one comes.

`Retry-After` is estimated from the work of requests and the speed of the engine. A text prompt has no token
count before the engine has seen it, so its length is converted into tokens at the rate of earlier prompts.
The throughput is that of the last 30 s in which requests had to wait; before there were any, that of the
tokens of running requests.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from ovserve.access import current_request
from ovserve.engine.admission.fair_queue import FairQueue, Waiter
from ovserve.engine.admission.limits import Limits
from ovserve.engine.admission.stream import GatedStream
from ovserve.engine.client.delta_stream import DeltaStream
from ovserve.engine.client.lengths import check_sizes
from ovserve.engine.client.text import TextClient
from ovserve.errors import Overloaded, RateLimited
from ovserve.llm.request import GenerateRequest, Prompt
from ovserve.telemetry.requests import RequestMetrics

DEFAULT_CHARACTERS_PER_TOKEN = 4.0  # as in English prose
DEFAULT_IMAGE_TOKENS = 576.0  # tokens, as of LLaVA
EWMA_WEIGHT = 0.1  # weight of a new prompt in the mean
WINDOW_SECONDS = 30.0
SAMPLE_INTERVAL_SECONDS = 1.0  # between two samples of the counters
DEFAULT_ANSWER_TOKENS = 100  # tokens of an answer, before there was one


class ThroughputEstimator:
    def __init__(self, meter: RequestMetrics) -> None:
        self._meter = meter
        self._characters_a_token = DEFAULT_CHARACTERS_PER_TOKEN
        self._tokens_an_image = DEFAULT_IMAGE_TOKENS
        self._samples: deque[tuple[float, int]] = deque()  # time, tokens until then

    def tokens_of(self, prompts: tuple[Prompt, ...], images: int = 0) -> int:
        """Estimate the tokens of all prompts together, at least one, each with so many images."""
        text = sum(
            max(1, int(len(p) / self._characters_a_token)) if isinstance(p, str) else len(p) for p in prompts
        )
        return text + int(images * len(prompts) * self._tokens_an_image)

    def learn(self, prompts: tuple[Prompt, ...], tokens: int, images: int = 0) -> None:
        """Record the token count of prompts."""
        if images:
            each = (tokens - self.tokens_of(prompts)) / (images * len(prompts))
            self._tokens_an_image += EWMA_WEIGHT * (max(0.0, each) - self._tokens_an_image)
            return
        characters = sum(len(p) for p in prompts if isinstance(p, str))
        if characters and tokens and all(isinstance(p, str) for p in prompts):
            self._characters_a_token += EWMA_WEIGHT * (characters / tokens - self._characters_a_token)

    @property
    def answer_tokens(self) -> float:
        """Return the mean number of tokens of an answer."""
        answers = self._meter.request_generated_tokens
        return answers.sum / answers.count if answers.count else DEFAULT_ANSWER_TOKENS

    def sample(self, now: float, *, busy: bool) -> None:
        """Sample the counters; call it now and then. `busy`: requests wait, so the engine works at its full
        speed."""
        if not busy:
            self._samples.clear()
        elif not self._samples or now - self._samples[-1][0] >= SAMPLE_INTERVAL_SECONDS:
            self._samples.append((now, self._tokens))
            while now - self._samples[0][0] > WINDOW_SECONDS:
                self._samples.popleft()

    def seconds(self, tokens: float, now: float) -> float | None:
        """Return the seconds for so many tokens of work; None when nothing is known."""
        rate = 0.0
        if self._samples and now - self._samples[0][0] >= SAMPLE_INTERVAL_SECONDS:
            rate = (self._tokens - self._samples[0][1]) / (now - self._samples[0][0])
        elif (gaps := self._meter.between_tokens).sum:
            rate = self._meter.in_engine * gaps.count / gaps.sum
        return tokens / rate if rate else None

    @property
    def _tokens(self) -> int:
        return self._meter.prompt_tokens + self._meter.generated_tokens


PREFILL_STEPS = 16  # steps of max_num_batched_tokens each
MIN_LONG_PROMPTS = 4  # a few clients that begin together do not wait for each other's prefill
CALM_SECONDS = 5.0  # without a live request, until an engine that cannot pause lines gets several
BATCH_TIMEOUT_SECONDS = 30 * 24 * 3600.0  # a line of a batch ends with its batch
MIN_RETRY_AFTER_SECONDS, MAX_RETRY_AFTER_SECONDS = 0.1, 600.0
DEFAULT_RETRY_AFTER_SECONDS = 1.0


@dataclass(eq=False)
class _Prefilling:
    """Requests sent that have no first token, all short or all long."""

    requests: int = 0
    tokens: int = 0  # prompt tokens

    def count(self, waiter: Waiter, sign: int) -> None:
        self.requests += sign
        self.tokens += sign * waiter.tokens


class AdmissionController:
    """The queue of one text engine: requests wait here, in a fair order and within bounds."""

    def __init__(self, engine: TextClient, meter: RequestMetrics, limits: Limits) -> None:
        self._engine = engine
        self._meter = meter
        self._limits = limits
        self._queue = FairQueue(limits.queue_timeout)
        self._throughput = ThroughputEstimator(meter)
        self._step_tokens = engine.spec.max_num_batched_tokens
        self._prefill_room = PREFILL_STEPS * self._step_tokens
        # prefilling tokens, below which waiting requests are admitted
        self._prefill_low = self._prefill_room // 2
        self._short, self._long = _Prefilling(), _Prefilling()
        self._batch: deque[Waiter] = deque()
        self._last_live = -math.inf

    async def generate(self, request: GenerateRequest) -> GatedStream:
        """Start a request. Raises Overloaded when it is rejected here, else as the engine does."""
        check_sizes(request.prompts, self._engine.facts)  # do not let it wait for a certain rejection
        now, call = time.monotonic(), current_request()
        if call.batch:
            return await self._generate_in_batch(request)
        self._last_live = now
        self._meter.ignored_params += len(request.presentation.ignored_params)
        caller = call.caller
        call.queued = now - call.started
        limits = self._limits.of(caller.rights)
        if allowance := self._engine.load_allowance:
            self._engine.refuse_impatient(call.left)
        patience = min(limits.queue_timeout + allowance, limits.request_timeout)
        tokens = self._throughput.tokens_of(request.prompts, len(request.images))
        choices = len(request.prompts) if request.sampling.beams > 1 else request.choices
        waiter = Waiter(caller.name, tokens, choices, now, request.user, caller.rights.weight)
        self._throughput.sample(now, busy=bool(self._queue))
        if shortage := self._engine.short_of_memory:
            raise self._refusal("memory", shortage)
        try:
            async with asyncio.timeout(patience):
                if self._queue or not self._room(waiter):
                    await self._wait(waiter, caller.rights.max_queue)
                else:
                    self._reserve(waiter)
                stream = await self._send(request, waiter)
        except TimeoutError:
            raise self.overdue(patience) from None
        return GatedStream(self, stream, request, waiter, limits)

    async def _generate_in_batch(self, request: GenerateRequest) -> GatedStream:
        """Start a line of a batch when live requests leave room. It waits for that outside of their queue, as
        long as it takes."""
        if shortage := self._engine.short_of_memory:
            raise self._refusal("memory", shortage)
        request = msgspec.structs.replace(request, batch=True)
        tokens = self._throughput.tokens_of(request.prompts, len(request.images))
        waiter = Waiter("", tokens, request.choices, time.monotonic(), batch=True)
        self._batch.append(waiter)
        self._engine.on_room.add(self._advance)
        self._advance()
        try:
            await waiter.admission
            stream = await self._engine.generate(
                request, self._meter.of_batches, repeated=True, stall_timeout=self._limits.stall_timeout
            )
        except BaseException:
            if waiter.admitted:
                self._engine.reserved -= waiter.choices
                self._engine.batch_lines -= waiter.choices
            elif waiter in self._batch:
                self._batch.remove(waiter)
            self._advance()
            raise
        self._engine.reserved -= waiter.choices
        current_request().admitted = time.monotonic() - current_request().started
        limits = replace(
            self._limits, queue_timeout=BATCH_TIMEOUT_SECONDS, request_timeout=BATCH_TIMEOUT_SECONDS
        )
        return GatedStream(self, stream, request, waiter, limits)

    async def tokenize(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        return await self._engine.tokenize(texts, add_special_tokens=add_special_tokens)

    async def detokenize(
        self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool = False
    ) -> list[str]:
        return await self._engine.detokenize(rows, skip_special_tokens=skip_special_tokens)

    @property
    def last_message(self) -> float:
        """Return when the engine last sent anything, by `time.monotonic()`."""
        return self._engine.last_message

    @property
    def reading(self) -> bool:
        """Return whether the engine reads prompts: such a step may be long and silent."""
        return self._engine.reading

    # ---- waiting for room

    def _room(self, waiter: Waiter) -> bool:
        """Return whether there is room; a request too large by itself is admitted to an empty engine."""
        kind = self._kind(waiter)
        return self._has_place(waiter) and (
            kind.requests < self._min_admitted(kind) or kind.tokens + waiter.tokens <= self._prefill_room
        )

    def _has_place(self, waiter: Waiter) -> bool:
        held = self._engine.in_flight - self._engine.batch_lines
        return not held or held + waiter.choices <= self._engine.spec.max_num_seqs

    def _kind(self, waiter: Waiter) -> _Prefilling:
        return self._short if waiter.tokens <= self._step_tokens else self._long

    def _min_admitted(self, kind: _Prefilling) -> int:
        """Return how many requests are admitted whatever their tokens."""
        return MIN_LONG_PROMPTS if kind is self._long else 1

    def _is_low(self, kind: _Prefilling) -> bool:
        return kind.tokens <= self._prefill_low or kind.requests < self._min_admitted(kind)

    async def _wait(self, waiter: Waiter, most: int | None) -> None:
        """Wait for a turn. `most`: the limit of waiting requests of one caller."""
        queue, limits = self._queue, self._limits
        if most is not None and queue.waiting_of(waiter.caller) >= most:
            raise RateLimited(
                f"this key may have {most} requests waiting for a model",
                retry_after=self._time_for_the_queue(),
            )
        while len(queue) >= limits.max_queue:
            if not self._evict_for(waiter, by_tokens=False):
                raise self._refusal("queue_full", f"{len(queue)} requests are waiting")
        while queue and queue.tokens + waiter.tokens > limits.max_queue_tokens:
            if not self._evict_for(waiter, by_tokens=True):
                raise self._refusal(
                    "queue_tokens", f"requests with about {queue.tokens} prompt tokens are waiting"
                )
        queue.add(waiter)
        self._engine.on_room.add(self._advance)
        self._advance()  # it may be short, and the requests before it long
        try:
            await waiter.admission
        except asyncio.CancelledError:
            if waiter.admitted:
                self._release(waiter)  # it got its turn just as it left
            queue.remove(waiter)
            self._advance()
            raise

    def _evict_for(self, newcomer: Waiter, *, by_tokens: bool) -> bool:
        """Evict a waiting request in favour of the newcomer; return whether one was evicted."""
        loser = self._queue.eviction_candidate(newcomer, by_tokens=by_tokens)
        if loser is None:
            return False
        self._queue.remove(loser)
        if not loser.admission.done():
            why = "the queue is full, and most of its requests are this caller's"
            loser.admission.set_exception(self._refusal("queue_share", why))
        return True

    def _advance(self) -> None:
        """Admit the waiting requests that have room; called whenever there may be more room."""
        now = time.monotonic()
        self._throughput.sample(now, busy=bool(self._queue))
        low = {kind for kind in (self._short, self._long) if self._is_low(kind)}
        while (waiter := self._next(now, low)) is not None:
            if waiter.admission.cancelled():  # its task has not resumed yet
                self._queue.remove(waiter)
                continue
            self._queue.take(waiter, waiter.tokens + waiter.choices * self._throughput.answer_tokens)
            self._reserve(waiter)
            waiter.admission.set_result(None)
        while self._batch and self._has_batch_room(self._batch[0]):
            waiter = self._batch.popleft()
            if not waiter.admission.cancelled():
                waiter.admitted = True
                self._engine.reserved += waiter.choices
                self._engine.batch_lines += waiter.choices
                waiter.admission.set_result(None)
        if not self._queue and not self._batch:
            self._engine.on_room.discard(self._advance)
        self._count()

    def _has_batch_room(self, waiter: Waiter) -> bool:
        """Return whether no live request waits or runs, and the engine takes one more line of a batch."""
        engine = self._engine
        if self._queue or engine.in_flight > engine.batch_lines:
            self._last_live = time.monotonic()
            return False
        calm = engine.spec.pauses_batches or time.monotonic() - self._last_live > CALM_SECONDS
        most = engine.spec.max_num_seqs if calm else 1
        return not engine.batch_lines or engine.batch_lines + waiter.choices <= most

    def _next(self, now: float, low: set[_Prefilling]) -> Waiter | None:
        """Return the request to admit next.

        A short prompt passes a long one that waits for others to be read, but not
        one that waits for a place: that could be forever.
        """
        first = self._queue.next(now)
        if first is None or not self._has_place(first):
            return None
        for waiter in (first, self._queue.next(now, most=self._step_tokens)):
            if waiter is not None and self._kind(waiter) in low and self._room(waiter):
                return waiter
        return None

    def _count(self) -> None:
        self._meter.queued, self._meter.queued_tokens = len(self._queue), self._queue.tokens

    # ---- from room to first token

    def _reserve(self, waiter: Waiter) -> None:
        self._engine.reserved += waiter.choices
        self._kind(waiter).count(waiter, 1)

    def _release(self, waiter: Waiter) -> None:
        self._engine.reserved -= waiter.choices
        self._kind(waiter).count(waiter, -1)

    async def _send(self, request: GenerateRequest, waiter: Waiter) -> DeltaStream:
        try:
            stream = await self._engine.generate(
                request,
                self._meter,
                waiter.arrived,
                repeated=current_request().repeated,
                stall_timeout=self._limits.stall_timeout,
            )
        except BaseException:
            self._release(waiter)
            self._advance()
            raise
        self._engine.reserved -= waiter.choices  # now the engine counts them
        return stream

    def admitted(self, request: GenerateRequest, tokens: int) -> None:
        self._throughput.learn(request.prompts, tokens, len(request.images))

    def begun(self, waiter: Waiter) -> None:
        """Record that the first token came, or that none will."""
        if waiter.batch:
            return
        self._kind(waiter).count(waiter, -1)
        if self._queue:
            self._advance()

    def ended(self, waiter: Waiter) -> None:
        """Record that a line of a batch has left the engine."""
        self._engine.batch_lines -= waiter.choices
        self._advance()

    # ---- rejections

    def overdue(self, seconds: float) -> Overloaded:
        return self._refusal("queue_timeout", f"the request was not admitted within {seconds:g} s")

    def _refusal(self, cause: str, why: str) -> Overloaded:
        return Overloaded(
            f"the server is overloaded: {why}", cause=cause, retry_after=self._time_for_the_queue()
        )

    def _time_for_the_queue(self) -> float:
        work = self._queue.tokens + len(self._queue) * self._throughput.answer_tokens
        seconds = self._throughput.seconds(work, time.monotonic())
        # After `queue_timeout` every request that waits now is admitted or rejected, so a later time is never
        # needed.
        longest = min(MAX_RETRY_AFTER_SECONDS, self._limits.queue_timeout)
        return min(
            DEFAULT_RETRY_AFTER_SECONDS if seconds is None else max(seconds, MIN_RETRY_AFTER_SECONDS), longest
        )
