"""What one request has gained since it last sent something; shared by `genai` and `scripted`.

Here the stop strings cut, and here it is decided that a step which added no text sends nothing: every
message wakes the server, and on a small machine that costs tokens per second (spec/engine.md).
"""

from __future__ import annotations

from ovserve.engine.messages import StepItem
from ovserve.llm.request import Sampling
from ovserve.llm.stops import StopMatcher


class Output:
    __slots__ = ("_stops", "_text", "finish", "id", "tokens", "total")

    def __init__(self, request_id: int, sampling: Sampling) -> None:
        self.id = request_id
        self.tokens = 0
        self.total = 0
        self.finish: str | None = None
        self._text = ""
        self._stops = StopMatcher(sampling.stop, include=sampling.include_stop) if sampling.stop else None

    def count(self, tokens: int) -> None:
        self.tokens += tokens
        self.total += tokens

    def add_text(self, text: str) -> bool:
        """True when a stop string ended the request; the engine must then cancel it."""
        if self._stops is None:
            self._text += text
            return False
        text, matched = self._stops.feed(text)
        self._text += text
        if matched:
            self.finish = "stop"
            self._stops = None
        return matched

    def take(self) -> StepItem | None:
        if self.finish is not None and self._stops is not None:
            self._text += self._stops.flush()
        if not self._text and self.finish is None:
            return None
        item = StepItem(self.id, self._text, self.tokens, self.finish)
        self._text, self.tokens = "", 0
        return item
