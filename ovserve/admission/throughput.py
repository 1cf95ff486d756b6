"""Estimate the work of a request and the speed of the engine, for `Retry-After`.

A text prompt has no token count before the engine has seen it, so its length is converted
into tokens at the rate of earlier prompts. The throughput is that of the last 30 s in which requests had
to wait; before there were any, that of the tokens of running requests.
"""

from __future__ import annotations

from collections import deque

from ovserve.llm.request import Prompt
from ovserve.telemetry.requests import RequestMetrics

FIRST_GUESS = 4.0  # characters per token, as in English prose
FIRST_IMAGE = 576.0  # tokens, as of LLaVA
LEARNING = 0.1  # weight of a new prompt in the mean
WINDOW = 30.0  # seconds
APART = 1.0  # seconds between two samples of the counters
UNKNOWN = 100  # tokens of an answer, before there was one


class ThroughputEstimator:
    def __init__(self, meter: RequestMetrics) -> None:
        self._meter = meter
        self._characters_a_token = FIRST_GUESS
        self._tokens_an_image = FIRST_IMAGE
        self._seen: deque[tuple[float, int]] = deque()  # time, tokens until then

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
            self._tokens_an_image += LEARNING * (max(0.0, each) - self._tokens_an_image)
            return
        characters = sum(len(p) for p in prompts if isinstance(p, str))
        if characters and tokens and all(isinstance(p, str) for p in prompts):
            self._characters_a_token += LEARNING * (characters / tokens - self._characters_a_token)

    @property
    def answer_tokens(self) -> float:
        """Return the mean number of tokens of an answer."""
        answers = self._meter.request_generated_tokens
        return answers.sum / answers.count if answers.count else UNKNOWN

    def sample(self, now: float, *, busy: bool) -> None:
        """Sample the counters; call it now and then. `busy`: requests wait, so the engine works at its full
        speed."""
        if not busy:
            self._seen.clear()
        elif not self._seen or now - self._seen[-1][0] >= APART:
            self._seen.append((now, self._tokens))
            while now - self._seen[0][0] > WINDOW:
                self._seen.popleft()

    def seconds(self, tokens: float, now: float) -> float | None:
        """Return the seconds for so many tokens of work; None when nothing is known."""
        rate = 0.0
        if self._seen and now - self._seen[0][0] >= APART:
            rate = (self._tokens - self._seen[0][1]) / (now - self._seen[0][0])
        elif (gaps := self._meter.between_tokens).sum:
            rate = self._meter.in_engine * gaps.count / gaps.sum
        return tokens / rate if rate else None

    @property
    def _tokens(self) -> int:
        return self._meter.prompt_tokens + self._meter.generated_tokens
