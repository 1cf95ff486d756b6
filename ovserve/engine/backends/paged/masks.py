"""Masks over the vocabulary: which tokens a grammar allows next, and their use on logits.

A mask has one bit per token, in 32-bit words. Its cost by grammar is in `grammars.py`. It depends only on the
tokens so far, so it may be made on another thread while the model computes: the library releases the GIL.

`apply` uses numpy, because the library's own kernel writes each forbidden logit by itself: 526 us for a row
of 151,936 logits of which few are allowed, here 42. `make bench-masks` measures it: 17 and 15 us for a row of
49,152 with few allowed and with few forbidden, 1.2 and 0.9 ms for 64 rows; 42 and 33 us, 3.4 and 2.2 ms for
151,936.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.int32]
Logits = NDArray[np.float32]

WORD = 32
FORBIDDEN = np.float32(-np.inf)


def words(logits: int) -> int:
    """Return the length of a mask."""
    return -(-logits // WORD)


class Matcher:
    """The state of one answer in its grammar. `stops`: a mask of the tokens that end an answer.

    Not thread-safe.
    """

    def __init__(self, native: Any, stops: Mask) -> None:
        self._native, self.stops = native, stops
        self._mask = np.empty_like(stops)
        self._restricts = self._known = False  # of `_mask`: some token is forbidden; it is of this state

    def fill(self, row: Mask) -> bool:
        """Write the mask of the next token; return False if everything is allowed. `row` has no bit set where
        no token of the vocabulary can follow, and after the end."""
        restricts = self._update()
        row[:] = self._mask
        return restricts

    def alive(self) -> bool:
        """Return whether any token can follow."""
        self._update()
        return bool(self._mask.any())

    def fill_many(self, rows: NDArray[np.int32], tokens: Sequence[int]) -> int:
        """Write the masks before each of the drafted `tokens` and after the last; return how many of them are
        allowed, one after another. Rows after the first refused token are not written.

        A token that ends the answer is not counted, nor one after which no token could follow.
        """
        self.fill(rows[0])
        taken = 0
        for token in tokens:
            if not self._goes_on(token):
                break
            taken += 1
            if not self.alive():
                self.rollback(1)
                taken -= 1
                break
            rows[taken] = self._mask
        self.rollback(taken)
        return taken

    def allowed_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many of the drafted `tokens` are allowed, one after another, without one that ends the
        answer."""
        taken = 0
        for token in tokens:
            if not self._goes_on(token):
                break
            taken += 1
        self.rollback(taken)
        return taken

    def accept(self, token: int) -> bool:
        """Return False, and change nothing, if the grammar does not allow the token."""
        if self._native.is_terminated() or not 0 <= token < len(self.stops) * WORD:
            return False
        if not self._native.accept_token(token, False):
            return False
        self._known = False
        return True

    def rollback(self, count: int) -> None:
        """Take back the last accepted tokens."""
        if count:
            self._native.rollback(count)
            self._known = False

    @property
    def ended(self) -> bool:
        """Nothing but the end may follow, or it was accepted."""
        if self._native.is_terminated():
            return True
        if not self._native.is_completed():
            return False
        self._update()
        return not (self._mask & ~self.stops).any()

    @property
    def may_end(self) -> bool:
        """The text so far is a whole one of the grammar."""
        return bool(self._native.is_completed())

    def forced_text(self) -> str:
        """Return the text that must follow, or "". Its tokens are good drafts. They are not the only ones
        that are allowed, so they must be drawn like others: a model may prefer shorter ones."""
        if self._native.is_terminated():
            return ""
        try:
            return str(self._native.find_jump_forward_string())
        except UnicodeDecodeError as error:  # it ends within a character, as for the enum "é", "è"
            return error.object[: error.start].decode()

    def _goes_on(self, token: int) -> bool:
        return not _bit(self.stops, token) and self.accept(token)

    def _update(self) -> bool:
        if not self._known:
            if self._native.is_terminated():
                self._mask[:] = 0
                self._restricts = True
            else:
                self._restricts = bool(self._native.fill_next_token_bitmask(self._mask, 0, False))
            self._known = True
        return self._restricts


def apply(logits: NDArray[np.float32], masks: NDArray[np.int32], rows: Sequence[int]) -> None:
    """Set the forbidden logits of `rows` to minus infinity, each by the mask of the same place in `masks`."""
    for row, mask in zip(rows, masks, strict=False):
        restrict(logits[row], mask)


def restrict(row: Logits, mask: Mask) -> None:
    """Write the rarer kind one by one: those that are kept, or those that are forbidden."""
    allowed = int(np.bitwise_count(mask.view(np.uint32)).sum())
    if 2 * allowed > len(row):
        row[np.flatnonzero(~mask_bits(mask, len(row)))] = FORBIDDEN
        return
    kept = np.flatnonzero(mask_bits(mask, len(row)))
    values = row[kept]
    row.fill(FORBIDDEN)
    row[kept] = values


def mask_bits(mask: Mask, count: int) -> NDArray[np.bool_]:
    """Return a mask as truth values."""
    return np.unpackbits(mask.view(np.uint8), count=count, bitorder="little").view(np.bool_)


def mask_of(tokens: Sequence[int], logits: int) -> Mask:
    """Return the mask of these tokens."""
    bits = np.zeros(words(logits) * WORD, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def _bit(mask: Mask, token: int) -> bool:
    return 0 <= token < len(mask) * WORD and bool(int(mask[token // WORD]) >> token % WORD & 1)
