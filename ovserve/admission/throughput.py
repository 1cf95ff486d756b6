"""How much work a request is, and how fast work is done here: what a `Retry-After` is computed from.

Used by `gate.py`. A prompt that is text has no tokens before the engine has seen it, so its length is turned
into tokens at the rate of the prompts before. The pace is that of the last half minute in which requests had
to wait; before there was any, that of the tokens of those that run.
"""

from __future__ import annotations

from collections import deque

from ovserve.llm.request import Prompt
from ovserve.telemetry.requests import RequestMetrics

FIRST_GUESS = 4.0  # characters a token, as in English prose
FIRST_IMAGE = 576.0  # tokens, as of LLaVA
LEARNING = 0.1  # weight of a new prompt
WINDOW = 30.0  # seconds
APART = 1.0  # seconds between two looks at the counters
UNKNOWN = 100  # tokens an answer has, before there was one


class ThroughputEstimator:
    def __init__(self, meter: RequestMetrics) -> None:
        self._meter = meter
        self._characters_a_token = FIRST_GUESS
        self._tokens_an_image = FIRST_IMAGE
        self._seen: deque[tuple[float, int]] = deque()  # time, tokens until then

    def tokens_of(self, prompts: tuple[Prompt, ...], images: int = 0) -> int:
        """Of the prompts together, at least one; and of so many images in each."""
        text = sum(
            max(1, int(len(p) / self._characters_a_token)) if isinstance(p, str) else len(p) for p in prompts
        )
        return text + int(images * len(prompts) * self._tokens_an_image)

    def learn(self, prompts: tuple[Prompt, ...], tokens: int, images: int = 0) -> None:
        """The prompts had so many tokens."""
        if images:
            each = (tokens - self.tokens_of(prompts)) / (images * len(prompts))
            self._tokens_an_image += LEARNING * (max(0.0, each) - self._tokens_an_image)
            return
        characters = sum(len(p) for p in prompts if isinstance(p, str))
        if characters and tokens and all(isinstance(p, str) for p in prompts):
            self._characters_a_token += LEARNING * (characters / tokens - self._characters_a_token)

    @property
    def answer_tokens(self) -> float:
        """What an answer has on average."""
        answers = self._meter.request_generated_tokens
        return answers.sum / answers.count if answers.count else UNKNOWN

    def look(self, now: float, *, busy: bool) -> None:
        """To be called now and then. `busy`: requests have to wait, so all the engine can do is done."""
        if not busy:
            self._seen.clear()
        elif not self._seen or now - self._seen[-1][0] >= APART:
            self._seen.append((now, self._tokens))
            while now - self._seen[0][0] > WINDOW:
                self._seen.popleft()

    def seconds(self, tokens: float, now: float) -> float | None:
        """For work of so many tokens; None when nothing is known."""
        rate = 0.0
        if self._seen and now - self._seen[0][0] >= APART:
            rate = (self._tokens - self._seen[0][1]) / (now - self._seen[0][0])
        elif (gaps := self._meter.between_tokens).sum:
            rate = self._meter.in_engine * gaps.count / gaps.sum
        return tokens / rate if rate else None

    @property
    def _tokens(self) -> int:
        return self._meter.prompt_tokens + self._meter.generated_tokens
