"""TextAdmission: the admission of requests to an engine that generates text (`controller.py`).

Room is `max_num_seqs` choices, and so many prompt tokens without a first token that the engine's next steps
are full anyway (PREFILL_STEPS). Prompts of at most one step have that room for themselves, because the engine
takes them in ahead of longer ones; of longer ones, MIN_LONG_PROMPTS are admitted whatever their length.
Waiting requests are admitted together once half of that is done: a KV cache that grows as needed is copied as
a whole by every step that makes it grow, and one newcomer is enough for that (docs/performance.md).

A request that was handed to an engine that then sends nothing for `queue_timeout` is rejected as well. A
neighbour's long prompt makes a request slow, never overdue.

`Retry-After` is estimated from the work of requests and the speed of the engine. A text prompt has no token
count before the engine has seen it, so its length is converted into tokens at the rate of earlier prompts.
The throughput is that of the last 30 s in which requests had to wait; before there were any, that of the
tokens of running requests.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from ovserve.access import current_request
from ovserve.engine.admission.controller import BATCH_TIMEOUT_SECONDS, AdmissionController
from ovserve.engine.admission.fair_queue import FairQueue, Limits, Waiter
from ovserve.engine.client.requests import DeltaStream
from ovserve.engine.client.text import TextClient, check_sizes
from ovserve.errors import DeadlineExceeded
from ovserve.llm.request import Delta, GenerateRequest, Prompt
from ovserve.telemetry.metrics import RequestMetrics

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
        tokens = int(images * len(prompts) * self._tokens_an_image)
        for p in prompts:
            tokens += max(1, int(len(p) / self._characters_a_token)) if isinstance(p, str) else len(p)
        return tokens

    def record_prompts(self, prompts: tuple[Prompt, ...], tokens: int, images: int = 0) -> None:
        if images:
            each = (tokens - self.tokens_of(prompts)) / (images * len(prompts))
            self._tokens_an_image += EWMA_WEIGHT * (max(0.0, each) - self._tokens_an_image)
            return
        texts = [p for p in prompts if isinstance(p, str)]
        characters = sum(map(len, texts))
        if characters and tokens and len(texts) == len(prompts):
            self._characters_a_token += EWMA_WEIGHT * (characters / tokens - self._characters_a_token)

    @property
    def answer_tokens(self) -> float:
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


@dataclass(eq=False)
class _Prefilling:
    """Requests sent that have no first token, all short or all long."""

    min_admitted: int  # requests, whatever their tokens
    requests: int = 0
    tokens: int = 0  # prompt tokens

    def count(self, waiter: Waiter, sign: int) -> None:
        self.requests += sign
        self.tokens += sign * waiter.tokens

    def has_room(self, tokens: int, room: int) -> bool:
        return self.requests < self.min_admitted or self.tokens + tokens <= room


class TextRoom:
    """The `Room` of an engine that generates text."""

    counts_tokens = True

    def __init__(self, engine: TextClient, meter: RequestMetrics) -> None:
        self._engine = engine
        self._step_tokens = engine.spec.max_num_batched_tokens
        self._prefill_room = PREFILL_STEPS * self._step_tokens
        self._short, self._long = _Prefilling(1), _Prefilling(MIN_LONG_PROMPTS)
        self.pauses_batches = engine.spec.pauses_batches
        self.throughput = ThroughputEstimator(meter)
        self.sample = self.throughput.sample

    @property
    def slots(self) -> int:
        return self._engine.spec.max_num_seqs

    def fits(self, waiter: Waiter) -> bool:
        """Return whether there is room; a request too large by itself is admitted to an empty engine."""
        return self._has_slot(waiter) and self._kind(waiter).has_room(waiter.tokens, self._prefill_room)

    def admissible(self, queue: FairQueue, now: float) -> Iterator[Waiter]:
        """A short prompt passes a long one that waits for the prefill of others, but not one that waits for a
        slot, because that one might wait forever."""
        low = {kind for kind in (self._short, self._long) if kind.has_room(0, self._prefill_room // 2)}
        while (first := queue.next(now)) is not None and self._has_slot(first):
            for waiter in (first, queue.next(now, most=self._step_tokens)):
                if waiter is not None and self._kind(waiter) in low and self.fits(waiter):
                    yield waiter
                    break
            else:
                return

    def reserve(self, waiter: Waiter) -> None:
        self._kind(waiter).count(waiter, 1)

    def release(self, waiter: Waiter) -> None:
        self._kind(waiter).count(waiter, -1)

    def charge(self, waiter: Waiter) -> float:
        return waiter.tokens + waiter.choices * self.throughput.answer_tokens

    def seconds(self, queue: FairQueue, now: float) -> float | None:
        return self.throughput.seconds(queue.tokens + len(queue) * self.throughput.answer_tokens, now)

    def _has_slot(self, waiter: Waiter) -> bool:
        held = self._engine.in_flight - self._engine.batch_lines
        return not held or held + waiter.choices <= self.slots

    def _kind(self, waiter: Waiter) -> _Prefilling:
        return self._short if waiter.tokens <= self._step_tokens else self._long


class TextAdmission:
    """An engine as nodes see it: `generate` waits for room."""

    def __init__(self, engine: TextClient, meter: RequestMetrics, limits: Limits) -> None:
        self._engine = engine
        self._meter = meter
        self.room = TextRoom(engine, meter)
        self.controller = AdmissionController(engine, meter, limits, self.room)

    async def generate(self, request: GenerateRequest) -> AdmittedText:
        """Start a request. Raises Overloaded when it is rejected here, else as the engine does."""
        check_sizes(request.prompts, self._engine.facts)  # do not let it wait for a certain rejection
        now, call = time.monotonic(), current_request()
        limits, meter = self.controller.limits.of(call.caller.rights), self._meter
        if call.batch:
            request, meter = msgspec.structs.replace(request, batch=True), meter.of_batches
            limits = replace(
                limits, queue_timeout=BATCH_TIMEOUT_SECONDS, request_timeout=BATCH_TIMEOUT_SECONDS
            )
        else:
            meter.ignored_params += len(request.presentation.ignored_params)
        caller = call.caller
        tokens = self.room.throughput.tokens_of(request.prompts, len(request.images))
        choices = len(request.prompts) if request.sampling.beams > 1 else request.choices
        waiter = Waiter(caller.name, tokens, choices, now, request.user, caller.rights.weight)

        def send() -> Awaitable[DeltaStream]:
            return self._engine.generate(
                request,
                meter,
                None if call.batch else now,
                repeated=call.batch or call.repeated,
                stall_timeout=limits.stall_timeout,
            )

        stream = await self.controller.admit(waiter, limits, now + limits.request_timeout, send)
        return AdmittedText(self, self._engine, stream, request, waiter, limits)

    async def tokenize(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        return await self._engine.tokenize(texts, add_special_tokens=add_special_tokens)

    async def detokenize(
        self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool = False
    ) -> list[str]:
        return await self._engine.detokenize(rows, skip_special_tokens=skip_special_tokens)


class AdmittedText:
    """One generation under way. It ends with an error when its request is overdue."""

    def __init__(
        self,
        admission: TextAdmission,
        engine: TextClient,
        inner: DeltaStream,
        request: GenerateRequest,
        waiter: Waiter,
        limits: Limits,
    ) -> None:
        self._controller, self._room = admission.controller, admission.room
        self._engine, self._inner, self._request = engine, inner, request
        self._waiter, self._limits = waiter, limits
        self._admitted = self._begun = False
        self._call = current_request()
        self._sent = time.monotonic()
        self._controller.deadlines.set(self, min(self._due, self._sent + limits.queue_timeout))
        inner.mailbox.on_admission = self._admit
        inner.mailbox.on_prefill = self._call.record_prefill

    async def next(self) -> Delta:
        delta = await self._inner.next()
        if not self._begun:
            if delta.prompt_tokens:
                self._call.cached_tokens = delta.cached_tokens
            if delta.tokens or delta.last:
                self._begun = True
                self._controller.begun(self._waiter)
        if delta.drafted or delta.accepted:
            self._call.drafted_tokens += delta.drafted
            self._call.accepted_tokens += delta.accepted
        return delta

    def abort_if_running(self) -> None:
        self._controller.deadlines.remove(self)
        self._inner.abort_if_running()
        # They refer to this, which would wait for the garbage collector.
        self._inner.mailbox.on_admission = self._inner.mailbox.on_prefill = None
        self._controller.finish(self._waiter)

    def expire(self) -> None:
        """Called at the time of the deadline, which may have moved since."""
        now, limits = time.monotonic(), self._limits
        if self._admitted or now >= self._due:
            seconds = limits.request_timeout
            self._inner.fail(DeadlineExceeded(f"the answer was not complete within {seconds:g} s"))
        elif now >= self._last_message + limits.queue_timeout and not self._engine.prefilling:
            self._inner.fail(self._controller.overdue(limits.queue_timeout))
        else:  # the engine counts as silent; during prefill, the watchdog decides whether it hangs
            since = now if self._engine.prefilling else self._last_message
            self._controller.deadlines.set(self, min(self._due, since + limits.queue_timeout))

    def _admit(self, prompt_tokens: int) -> None:
        if not self._admitted:
            self._admitted = True
            self._call.admitted = time.monotonic() - self._call.started
            self._call.count(prompt_tokens, 0)
            request = self._request
            self._room.throughput.record_prompts(request.prompts, prompt_tokens, len(request.images))
            self._controller.deadlines.set(self, self._due)

    @property
    def _due(self) -> float:
        return self._waiter.arrived + self._limits.request_timeout

    @property
    def _last_message(self) -> float:
        """Return when the engine last sent anything since it has this request."""
        return max(self._sent, self._engine.last_message)
