"""Request measurements of one model: a RequestMetrics per model, a RequestTimeline per running request.

The engine client updates a RequestTimeline where messages of the engine arrive, so a slow reader of the text
does not make the engine look slow. Everything is plain numbers: a token costs one comparison and one
observation. Times are `time.monotonic()` in seconds.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property

from ovserve.telemetry.metrics import BETWEEN_TOKENS, OF_REQUESTS, TO_FIRST_TOKEN, TOKENS, Histogram


class RequestMetrics:
    """Sums over all requests to one model since the server started, across reloads and engine restarts."""

    @cached_property
    def of_batches(self) -> RequestMetrics:
        """The sums of lines of batches, which are not in these: their times say nothing of live requests."""
        return RequestMetrics()

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.prefix_queries = 0  # prompt tokens of all choices that were looked up in the prefix cache
        self.prefix_hits = 0  # how many of them were found
        self.ignored_params = 0
        self.queued = 0  # requests waiting for room in the engine
        self.queued_tokens = 0  # estimated tokens of their prompts
        self.in_engine = 0  # choices that run or wait in the engine
        self.finished: Counter[str] = Counter()  # choices by finish reason
        self.first_token = Histogram(TO_FIRST_TOKEN)
        self.between_tokens = Histogram(BETWEEN_TOKENS)
        self.queue_time = Histogram(OF_REQUESTS)  # from the request to its admission by the engine
        self.prefill_time = Histogram(OF_REQUESTS)  # from the admission to the first token
        self.decode_time = Histogram(OF_REQUESTS)  # from the first to the last token
        self.latency = Histogram(OF_REQUESTS)  # from the request to the last token
        self.request_prompt_tokens = Histogram(TOKENS)
        self.request_generated_tokens = Histogram(TOKENS)


class RequestTimeline:
    """The timeline of one request to an engine: a choice, or all its beams."""

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
