"""Token ids of a text of any length, with a tokenizer that silently truncates long ones.

Tokenizers that the library makes from GGUF files stop at the model's context length, and its max_length
argument does not change that (measured). An answer to a silently truncated prompt is worse than an error, and
the error should give the prompt's length. So a text that came back at full length is tokenized in pieces, and
a piece that came back so in halves. They are cut before white space that follows a word, where tokenizers
begin a new token anyway. The time is linear in the text: each part of it is in few of the calls, however long
it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

Encode = Callable[[str, bool], list[int]]  # text, add_special_tokens

_WORD_END = re.compile(r"(?<=\S)(?=\s)")
_PROBE = "a "
_PIECE = 2  # characters per piece and token of the limit; most pieces are then tokenized once


class WholeText:
    def __init__(self, encode: Encode, expected_limit: int | None) -> None:
        """`expected_limit`: the presumed limit, which is the model's context length."""
        self._encode = encode
        self.limit = _limit(encode, expected_limit)
        bare, dressed = encode("a", False), encode("a", True)
        at = next((i for i in range(len(dressed)) if dressed[i : i + len(bare)] == bare), 0)
        self._before, self._after = dressed[:at], dressed[at + len(bare) :]

    def is_cut(self, length: int) -> bool:
        """Return whether ids of this length may be only those of the beginning."""
        return self.limit is not None and length >= self.limit

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids = self._encode(text, add_special_tokens)
        if not self.is_cut(len(ids)):
            return ids
        ids = [id_ for piece in self._pieces(text) for id_ in self._by_halves(piece)]
        return [*self._before, *ids, *self._after] if add_special_tokens else ids

    def _pieces(self, text: str) -> Iterator[str]:
        size = _PIECE * (self.limit or len(text))
        start = 0
        while start < len(text):
            boundary = _WORD_END.search(text, start + size, start + 2 * size)
            end = boundary.start() if boundary else start + size
            yield text[start:end]
            start = end

    def _by_halves(self, text: str) -> list[int]:
        encoded: list[int] = []
        todo = [text]
        while todo:
            part = todo.pop()
            ids = self._encode(part, False)
            if self.is_cut(len(ids)) and len(part) > 1:
                boundary = _WORD_END.search(part, len(part) // 2) or _WORD_END.search(part, 1)
                middle = boundary.start() if boundary and boundary.start() < len(part) else len(part) // 2
                todo += [part[middle:], part[:middle]]
            else:
                encoded += ids
        return encoded


def _limit(encode: Encode, expected: int | None) -> int | None:
    if expected is None:
        return None
    length = len(encode(_PROBE * 2 * expected, False))
    return length if length <= expected else None
