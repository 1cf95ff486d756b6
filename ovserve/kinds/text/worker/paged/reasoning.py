"""Ends the reasoning of an answer that has reached its budget, by forcing the model's own closing tokens.

Tags are searched for in bytes, not in ids: of a tag that is not one token a model may write other tokens than
the tokenizer, and its last one may hold the beginning of the text. The search looks at the last token and at
the few bytes before it, so each token costs the same however long the reasoning is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ovserve.errors import InvalidArgument, shortened
from ovserve.kinds.text.worker.genai.text import Text
from ovserve.llm.request import ReasoningBudget

MAX_CHARACTER_TOKENS = 3  # by which a budget is exceeded at most, so that no character is cut in two


class ReasoningLimit:
    """The place in one answer's reasoning after its tokens so far."""

    def __init__(
        self, budget: ReasoningBudget, closing: Sequence[int], bytes_of: Callable[[int], bytes]
    ) -> None:
        """`closing`: the tokens that end the reasoning. `bytes_of`: the text of a token."""
        self._starts = tuple(start.encode() for start in budget.starts)
        self._ends = tuple(end.encode() for end in budget.ends)
        tags = b"|".join(map(re.escape, self._ends))
        # Between two quotes it is talked about, to the parser (`llm/parsing/scanner.py`) as well.
        self._talk = re.compile(
            rb"(?!)" if budget.anywhere or budget.held else rb"([`'\"])(?:%b)(\1|\Z)" % tags
        )
        self._longest = max(map(len, (*self._starts, *self._ends)))
        self._anywhere = budget.anywhere
        self._closing, self._bytes_of = closing, bytes_of
        self._left = budget.tokens
        self._inside, self._sought = budget.inside, not budget.inside
        self._text = b""  # the end of the answer; all of it while the reasoning may be the next text
        self._pending: list[int] = []  # tokens that must follow, the last one first
        self._close_if_spent()

    @property
    def forced(self) -> int | None:
        """The token that must follow; None: the model chooses."""
        return self._pending[-1] if self._pending else None

    def append(self, token: int) -> None:
        if self._pending:
            self._pending.pop()
            if not self._pending:
                self._leave(b"")
        elif self._inside:
            self._left -= 1
            self._text += self._bytes_of(token)
            end, talk = _first(self._text, self._ends), self._talk.search(self._text)
            if end and (talk is None or talk.start() > end):
                self._leave(self._text[end:])
            elif talk is None or talk[2]:  # else the next character shows it
                self._text = self._text[talk.end() if talk else -self._longest - 1 :]
                self._close_if_spent()
        elif self._sought:
            self._text += self._bytes_of(token)
            self._seek_start()

    def _seek_start(self) -> None:
        text = self._text if self._anywhere else self._text.lstrip()
        if self._anywhere or text.startswith(self._starts):
            start = _first(text, self._starts)
            if start:
                self._inside, self._sought, self._text = True, False, text[start:]
                self._close_if_spent()
            else:
                self._text = text[-self._longest :]
        elif not any(tag.startswith(text) for tag in self._starts):
            self._sought = False  # the answer has begun without reasoning
        else:
            self._text = text

    def _leave(self, text: bytes) -> None:
        self._inside, self._sought, self._text = False, self._anywhere, text

    def _close_if_spent(self) -> None:
        if not self._inside or self._left > 0:
            return
        if self._left <= -MAX_CHARACTER_TOKENS or not _cuts_character(self._text):
            self._pending = [*reversed(self._closing)]


def _first(text: bytes, tags: tuple[bytes, ...]) -> int:
    """Return the end of the first tag in a text; 0: there is none."""
    places = [(at, at + len(tag)) for tag in tags if (at := text.find(tag)) >= 0]
    return min(places)[1] if places else 0


def _cuts_character(text: bytes) -> bool:
    """Return whether a text ends inside a UTF-8 character."""
    for size, byte in enumerate(reversed(text[-3:]), 1):
        if byte >= 0xC0:  # the first byte of a character of 2, 3 or 4
            return size < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
        if byte < 0x80:
            return False
    return False


def reasoning_limit(
    budget: ReasoningBudget | None, stop_ids: frozenset[int], text: Text
) -> ReasoningLimit | None:
    """Return the limit of an answer, if it has one. Raises InvalidArgument for a message that ends it."""
    if budget is None or not budget.ends:
        return None
    closing = text.encode(budget.message + budget.closing, False)
    if budget.message and not stop_ids.isdisjoint(closing):
        raise InvalidArgument.at(
            "reasoning_budget_message", f"{shortened(budget.message)!r} has a token that ends the answer"
        )
    return ReasoningLimit(budget, closing, text.bytes_of)
