"""The part of an answer that was not sent yet.

It cuts at stop strings. It also decides that a step without new text sends nothing: every
message wakes the server, and on a small machine that costs tokens per second.
"""

from __future__ import annotations

from ovserve.engine.protocol.messages import StepItem
from ovserve.llm.request import Sampling, TokenLogprob
from ovserve.llm.stops import StopMatcher


class Output:
    __slots__ = (
        "_logprob_chars",
        "_logprobs",
        "_stops",
        "_text",
        "_text_chars",
        "accepted",
        "drafted",
        "finish",
        "id",
        "index",
        "last_index",
        "repetitive",
        "stop_string",
        "tokens",
        "total",
    )

    def __init__(self, request_id: int, sampling: Sampling, index: int = 0) -> None:
        self.id = request_id
        self.index = index
        self.last_index = sampling.n - 1 if sampling.beams > 1 else 0  # beams end together, in order
        self.tokens = 0
        self.total = 0
        self.drafted = 0  # since the last item was sent; so is the next field
        self.accepted = 0
        self.finish: str | None = None
        self.stop_string: str | None = None
        self.repetitive = False
        self._text = ""
        self._text_chars = 0  # characters sent and ready to be sent
        self._stops = StopMatcher(sampling.stop, include=sampling.include_stop) if sampling.stop else None
        self._logprobs: list[TokenLogprob] | None = [] if sampling.logprobs else None
        self._logprob_chars = 0

    def count(self, tokens: int) -> None:
        self.tokens += tokens
        self.total += tokens

    def count_drafts(self, drafted: int, accepted: int) -> None:
        self.drafted += drafted
        self.accepted += accepted

    def echo(self, prompt: str) -> None:
        """Put the prompt at the beginning of the answer; stop strings are not searched in it."""
        self._add(prompt)

    def add_text(self, text: str) -> bool:
        """Return True when a stop string ended the answer; the engine must then cancel it."""
        if self._stops is None:
            self._add(text)
            return False
        text, matched = self._stops.feed(text)
        self._add(text)
        if matched:
            self.finish, self.stop_string, self.repetitive = "stop", self._stops.matched, False
            self._stops = None
            self._cut_logprobs()
        return matched

    def add_logprobs(self, logprobs: list[TokenLogprob]) -> None:
        if self._logprobs is not None:
            self._logprobs += logprobs

    def take(self) -> StepItem | None:
        if self.finish is not None and self._stops is not None:
            self._add(self._stops.flush())
        if not self._text and self.finish is None:
            return None
        last = self.finish is not None and self.index == self.last_index
        item = StepItem(
            self.id,
            self._text,
            self.tokens,
            self.finish,
            self.index,
            self._logprobs or None,
            last,
            self.drafted,
            self.accepted,
            self.stop_string,
            self.repetitive,
        )
        self._text, self.tokens, self.drafted, self.accepted = "", 0, 0, 0
        if self._logprobs:
            self._logprob_chars += sum(len(token.text) for token in self._logprobs)
            self._logprobs = []
        return item

    def _add(self, text: str) -> None:
        self._text += text
        self._text_chars += len(text)

    def _cut_logprobs(self) -> None:
        """Drop tokens that begin behind the cut: they are not part of the text."""
        if self._logprobs is None:
            return
        at, logprobs = self._logprob_chars, []
        for token in self._logprobs:
            if at >= self._text_chars:
                break
            logprobs.append(token)
            at += len(token.text)
        self._logprobs = logprobs
