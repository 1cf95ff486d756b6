"""Token ids to text, a few at a time, with one TokenWindow per sequence.

A token cannot be decoded alone: SentencePiece drops the blank before the first word, and one character may
span four tokens. So each sequence keeps its last few ids as context, and the new text is
decode(context + new) without decode(context). Both rows go into the one batched decode of the step, because a
decode call costs some 60 us whatever its size, and a row in it 1 us.

Tokenizers differ in the text of an unfinished character: some return up to three U+FFFD, some (those read
from GGUF among them) leave it out. The U+FFFD are held back, three at most, until the character is complete.
So invalid bytes, which never complete, are not withheld for long.
"""

from __future__ import annotations

from collections.abc import Sequence

REPLACEMENT = "\ufffd"
CONTEXT = 6  # ids; must reach back to the first byte of an unfinished character, which is three at most
MAX_HELD = 3


class TokenWindow:
    __slots__ = ("_context", "_held", "pending")

    def __init__(self) -> None:
        self._context: list[int] = []
        self._held = 0  # U+FFFD at the end of the context's text that were not sent
        self.pending: list[int] = []

    def push(self, ids: Sequence[int]) -> None:
        self.pending += ids

    def rows(self) -> tuple[list[int], list[int]]:
        """Return the two rows to decode for `take()`."""
        return self._context, self._context + self.pending

    def take(self, context_text: str, whole_text: str) -> str:
        """Return the new text, given the decoded rows."""
        start = len(context_text) - self._held
        tail = whole_text[-MAX_HELD:]
        self._held = min(len(tail) - len(tail.rstrip(REPLACEMENT)), len(whole_text) - start)
        self._context = (self._context + self.pending)[-CONTEXT:]
        self.pending = []
        return whole_text[start : len(whole_text) - self._held]

    def flush(self) -> str:
        """Return the withheld text, once nothing more can follow."""
        held, self._held = self._held, 0
        return REPLACEMENT * held
