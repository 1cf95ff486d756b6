"""The part of an answer that was not sent yet.

It cuts at stop strings. It also decides that a step without new text sends nothing: every
message wakes the server, and on a small machine that costs tokens per second.

Stop strings are matched here on text, exactly at the character. The engine library matches whole tokens:
it trims text before the stop string that shares a token with it, and lets a stop string through that ends
inside one (measured).

Of several matches, the one that is complete first wins; of those that complete together, the longest. So the
result does not depend on how the text is cut into chunks. At most the longest tail that could still become a
stop string is held back.
"""

from __future__ import annotations

from ovserve.engine.protocol.messages import StepItem
from ovserve.llm.request import Sampling, TokenLogprob


class StopMatcher:
    """One per request. After a match the matcher is done and must not be fed again."""

    __slots__ = ("_held", "_include", "_longest", "_stops", "matched")

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        if not all(stops):
            raise ValueError("an empty stop string would match before the first character")
        self._stops = stops
        self._include = include
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self.matched: str | None = None  # the stop string that ended the text

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that may go out now, and whether a stop string ended it."""
        text = self._held + text
        if match := self._first_match(text):
            start, end = match
            self._held, self.matched = "", text[start:end]
            return text[: end if self._include else start], True
        keep = self._possible_start(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """Return what was held back, once it is known that nothing follows."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, int] | None:
        best: tuple[int, int] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start < 0:
                continue
            end = start + len(stop)
            if best is None or (end, start) < (best[1], best[0]):
                best = (start, end)
        return best

    def _possible_start(self, text: str) -> int:
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0


class Output:
    __slots__ = (
        "_logprob_bytes",
        "_logprobs",
        "_stops",
        "_text",
        "_text_bytes",
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
        self._text_bytes = 0  # sent and ready to be sent
        self._stops = StopMatcher(sampling.stop, include=sampling.include_stop) if sampling.stop else None
        self._logprobs: list[TokenLogprob] | None = [] if sampling.logprobs else None
        self._logprob_bytes = 0

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
            self._logprob_bytes += sum(len(token.utf8) for token in self._logprobs)
            self._logprobs = []
        return item

    def _add(self, text: str) -> None:
        self._text += text
        self._text_bytes += len(text.encode("utf-8", "replace"))

    def _cut_logprobs(self) -> None:
        """Drop tokens that begin behind the cut: they are not part of the text."""
        if self._logprobs is None:
            return
        at, logprobs = self._logprob_bytes, []
        for token in self._logprobs:
            if at >= self._text_bytes:
                break
            logprobs.append(token)
            at += len(token.utf8)
        self._logprobs = logprobs
