"""Stop strings matched on text, exactly at the character; called by the engines for requests with `stop`.

Why not in the engine library: it matches whole tokens, so it trims text before the stop string that shares
a token with it, and lets a stop string through that ends inside one (measured).

Of several matches, the one that is complete first wins; of those that complete together, the longest. So the
result does not depend on how the text is cut into chunks. At most the longest tail that could still become a
stop string is held back.
"""

from __future__ import annotations


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
