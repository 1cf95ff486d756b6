"""Masks over the vocabulary: which tokens a grammar allows next, and their use on logits.

A mask has one bit per token, in 32-bit words. Its cost by grammar is in `grammars.py`. It depends only on the
tokens so far, so it may be made on another thread while the model computes: the library releases the GIL.

`restrict` uses numpy, because the library's own kernel writes each forbidden logit by itself: 526 us for a
row of 151,936 logits of which few are allowed, here 42. `make bench-masks` measures it: 17 and 15 us for a
row of 49,152 with few allowed and with few forbidden, 1.2 and 0.9 ms for 64 rows; 42 and 33 us, 3.4 and 2.2
ms for 151,936.

A grammar cannot say that the keys of an object differ. `JsonKeys` follows the JSON of an answer, and the mask
also forbids the tokens that would complete a key which its object already has. That takes 12 to 30 us per
token of an answer with many keys.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, insort
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.int32]
Logits = NDArray[np.float32]

WORD_BITS = 32
FORBIDDEN = np.float32(-np.inf)
QUOTE, BACKSLASH = b'"\\'
ESCAPE = re.compile(rb"\\.", re.DOTALL)
OUTSIDE_STRINGS = frozenset(b" \t\n\r:,{}[]+-.0123456789abcdefghijklmnopqrstuvwxyzE")
MAX_QUOTES = 5  # that a token needs to complete two keys, which begins within a value


def words(logits: int) -> int:
    """Return the length of a mask."""
    return -(-logits // WORD_BITS)


class QuotingTokens(NamedTuple):
    """The tokens of a vocabulary that can complete a key."""

    texts: Sequence[bytes]
    by_count: Sequence[NDArray[np.int64]]  # with this many quotes or more, up to MAX_QUOTES
    by_head: dict[bytes, list[int]]  # by the text before the quote, which has no escape
    others: NDArray[np.int64]  # those that may complete a key in another way


def quoting_tokens(texts: Sequence[bytes]) -> QuotingTokens:
    counts = np.array([text.count(QUOTE) for text in texts], np.int64)
    by_count = [np.flatnonzero(counts >= least) for least in range(MAX_QUOTES + 1)]
    by_head: dict[bytes, list[int]] = {}
    others = []
    for token in by_count[1].tolist():
        head = texts[token].partition(b'"')[0]
        if QUOTE not in ESCAPE.sub(b"", texts[token]):
            continue
        if BACKSLASH in head or counts[token] > 2:  # of which the second begins a value
            others.append(token)
        else:
            by_head.setdefault(head, []).append(token)
    return QuotingTokens(texts, by_count, by_head, np.array(others, np.int64))


class JsonBegins(NamedTuple):
    """The texts of a grammar after which an answer has JSON. `longest`: its bytes."""

    at_start: bool
    pattern: re.Pattern[bytes]
    longest: int


class _Container:
    """An open object with its keys in order, or an array, which has none. `within_object`: at any depth."""

    __slots__ = ("keys", "parent", "within_object")

    def __init__(self, parent: _Container | None, keys: list[bytes] | None) -> None:
        self.parent, self.keys = parent, keys
        self.within_object: bool = parent is not None and (parent.keys is not None or parent.within_object)


class _Place(NamedTuple):
    """The place in an answer's JSON after the text so far."""

    in_json: bool
    container: _Container | None = None
    string: int = -1  # where the string begins that is being written
    escaped: bool = False  # the next byte of it
    is_key: bool = False  # this string is a key, or the next one
    repeated: int = 0  # keys so far


# A string, white space, or a sign that grammars of JSON let a space follow.
_JSON_PARTS = re.compile(r'"(?:[^"\\]|\\.)*"?|\s+|[,:]', re.DOTALL)


def in_one_line(text: str) -> str:
    """Return the beginning of a JSON text with the white space that grammars of schemas have.

    What stands between two digits, or behind the last, stays: without it the number would go on.
    """

    def spaced(match: re.Match[str]) -> str:
        part, end = match[0], match.end()
        if part.isspace():
            before, after = text[max(match.start() - 1, 0)], text[end : end + 1]
            return " " if before.isalnum() and after not in ("}", "]", ",") else ""
        return f"{part} " if part in ",:" and end < len(text) else part

    return _JSON_PARTS.sub(spaced, text)


class JsonKeys:
    """The keys of the objects that are open in one answer, by its tokens so far."""

    def __init__(self, tokens: QuotingTokens, begins: JsonBegins) -> None:
        self._tokens, self._begins, self.texts = tokens, begins, tokens.texts
        self.at_start = begins.at_start
        self._text = bytearray()
        self._place = _Place(begins.at_start)
        # Of each token: the place and the size before it, and the keys that it added to objects.
        self._accepted: list[tuple[_Place, int, list[tuple[list[bytes], bytes]]]] = []

    def accept(self, text: bytes) -> None:
        place, start = self._place, len(self._text)
        added: list[tuple[list[bytes], bytes]] = []
        self._accepted.append((place, start, added))
        self._text += text
        if place.string >= 0 and not place.escaped and QUOTE not in text and BACKSLASH not in text:
            return
        at = start
        while at < len(self._text):
            if not place.in_json:
                if (at := self._next_json(at)) < 0:
                    break
                place = _Place(True, repeated=place.repeated)
                continue
            place = self._read(place, at, added)
            # A byte outside JSON may belong to the text that begins some.
            at += place.in_json or self._text[at] in OUTSIDE_STRINGS
        self._place = place

    def rollback(self, count: int) -> None:
        for _ in range(count):
            self._place, size, added = self._accepted.pop()
            del self._text[size:]
            for keys, key in added:
                del keys[bisect_left(keys, key)]

    @property
    def repeated(self) -> int:
        """The number of keys that their objects already had."""
        return self._place.repeated

    def repeats(self, token: int) -> bool:
        """Return whether the token completes a key that its object already has."""
        before = self.repeated
        self.accept(self._tokens.texts[token])
        repeats = self.repeated > before
        self.rollback(1)
        return repeats

    def repeating(self, mask: Mask) -> list[int]:
        """Return the tokens of the mask, and maybe more, that complete a key which its object already has."""
        place, container = self._place, self._place.container
        if not place.in_json:
            return []
        quotes = 2 if place.string < 0 else 1 if place.is_key else 3
        if container is None or not (container.keys or container.within_object):
            quotes += 2  # it has to write the key that it repeats
        ids, repeats = self._tokens.by_count[quotes], []
        if quotes == 1 and container is not None and BACKSLASH not in (key := self._text[place.string :]):
            repeats = self._closing(bytes(key), container.keys or [])
            ids = self._tokens.others
        if len(ids):
            ids = ids[(mask[ids // WORD_BITS] >> (ids % WORD_BITS) & 1).astype(np.bool_)]
        return repeats + [token for token in ids.tolist() if self.repeats(token)]

    def _closing(self, key: bytes, keys: list[bytes]) -> list[int]:
        """Return the tokens that complete one of `keys`, of which `key` is written."""
        by_head, size = self._tokens.by_head, len(key)
        first, end = bisect_left(keys, key), bisect_left(keys, key + b"\xff")
        if end - first < len(by_head):
            return [token for each in keys[first:end] for token in by_head.get(each[size:], ())]
        return [token for head, ids in by_head.items() if _has(keys, key + head) for token in ids]

    def _next_json(self, at: int) -> int:
        """Return where JSON begins, after `at`; -1: not in the text so far."""
        start = max(0, at + 1 - self._begins.longest)
        while (match := self._begins.pattern.search(self._text, start)) is not None:
            if match.end() > at:
                return match.end()
            start = match.start() + 1
        return -1

    def _read(self, place: _Place, at: int, added: list[tuple[list[bytes], bytes]]) -> _Place:
        byte, container = self._text[at], place.container
        if place.string >= 0:
            if byte == QUOTE and not place.escaped:
                repeated = place.repeated + (place.is_key and self._complete_key(place, at, added))
                return _Place(container is not None, container, repeated=repeated)
            return place._replace(escaped=byte == BACKSLASH and not place.escaped)
        if byte == QUOTE:
            return place._replace(string=at + 1)
        if byte not in OUTSIDE_STRINGS:
            return _Place(False, repeated=place.repeated)
        if byte in b"{[":
            inner = _Container(container, [] if byte == ord("{") else None)
            return _Place(True, inner, is_key=inner.keys is not None, repeated=place.repeated)
        if byte in b"}]":
            outer = None if container is None else container.parent
            return _Place(outer is not None, outer, repeated=place.repeated)
        if byte == ord(","):
            return place._replace(is_key=container is not None and container.keys is not None)
        return place

    def _complete_key(self, place: _Place, at: int, added: list[tuple[list[bytes], bytes]]) -> bool:
        """Return whether the object has the key already."""
        container, key = place.container, bytes(self._text[place.string : at])
        assert container is not None
        assert container.keys is not None, "an array has no keys"
        if BACKSLASH in key:
            key = _decode(key)
        if _has(container.keys, key):
            return True
        insort(container.keys, key)
        added.append((container.keys, key))
        return False


def _has(keys: list[bytes], key: bytes) -> bool:
    at = bisect_left(keys, key)
    return at < len(keys) and keys[at] == key


def _decode(key: bytes) -> bytes:
    """Return a key without escapes. A surrogate alone stays one."""
    try:
        text: str = json.loads(b'"%s"' % key, strict=False)
    except ValueError:  # the string is of some other language
        return key
    return text.encode("utf-8", "surrogatepass")


class Matcher:
    """The state of one answer in its grammar. `stops`: a mask of the tokens that end an answer. `keys`: None
    if the grammar has no JSON. `hidden`: tokens that are never text for a client.

    Not thread-safe.
    """

    def __init__(
        self, native: Any, stops: Mask, keys: JsonKeys | None = None, hidden: Collection[int] = ()
    ) -> None:
        self._native, self.stops, self._keys = native, stops, keys
        ids = [id_ for id_ in hidden if 0 <= id_ < len(stops) * WORD_BITS]
        self._shown = ~mask_of(ids, len(stops) * WORD_BITS) | stops if ids else None
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

    def allowed_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many of the drafted `tokens` are allowed, one after another, without one that ends the
        answer."""
        accepted = 0
        for token in tokens:
            if not self._is_allowed(token):
                break
            accepted += 1
        self.rollback(accepted)
        return accepted

    def accept(self, token: int) -> bool:
        """Return False, and change nothing, if the grammar does not allow the token."""
        if self._native.is_terminated() or not 0 <= token < len(self.stops) * WORD_BITS:
            return False
        if not self._native.accept_token(token, False):
            return False
        if self._keys is not None:
            self._keys.accept(self._keys.texts[token])
        self._known = False
        return True

    def begin(self, text: str) -> bool:
        """Accept what the prompt has of the answer; return False if the grammar does not allow it."""
        if self._keys is not None:
            if self._keys.at_start:
                text = in_one_line(text)
            self._keys.accept(text.encode())
        return bool(self._native.accept_string(text, False))

    def rollback(self, count: int) -> None:
        """Take back the last accepted tokens."""
        if count:
            self._native.rollback(count)
            if self._keys is not None:
                self._keys.rollback(count)
            self._known = False

    @property
    def ended(self) -> bool:
        """Nothing but the end may follow, or it was accepted."""
        if self._native.is_terminated():
            return True
        if not self.may_end:
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

    def _is_allowed(self, token: int) -> bool:
        repeated = 0 if self._keys is None else self._keys.repeated
        if _bit(self.stops, token) or (self._shown is not None and not _bit(self._shown, token)):
            return False
        if not self.accept(token):
            return False
        if self._keys is not None and self._keys.repeated > repeated:
            self.rollback(1)
            return False
        return True

    def _update(self) -> bool:
        if not self._known:
            if self._native.is_terminated():
                self._mask[:] = 0
                self._restricts = True
            else:
                self._restricts = bool(self._native.fill_next_token_bitmask(self._mask, 0, False))
                if self._restricts and self._shown is not None:
                    self._mask &= self._shown
                if self._restricts and self._keys is not None:
                    self._forbid_repeated_keys(self._keys)
            self._known = True
        return self._restricts

    def _forbid_repeated_keys(self, keys: JsonKeys) -> None:
        """A mask that would become empty stays as it is: the grammar admits no other key."""
        if tokens := keys.repeating(self._mask):
            mask = self._mask.copy()
            bits = mask.view(np.uint32)
            for token in tokens:
                bits[token // WORD_BITS] &= ~np.uint32(1 << token % WORD_BITS)
            if mask.any():
                self._mask = mask


def restrict(row: Logits, mask: Mask) -> None:
    """Write the rarer kind one by one: those that are kept, or those that are forbidden."""
    allowed = int(np.bitwise_count(mask.view(np.uint32)).sum())
    if 2 * allowed > len(row):
        row[np.flatnonzero(~mask_bits(mask, len(row)))] = FORBIDDEN
        return
    allowed_ids = np.flatnonzero(mask_bits(mask, len(row)))
    values = row[allowed_ids]
    row.fill(FORBIDDEN)
    row[allowed_ids] = values


def mask_bits(mask: Mask, count: int) -> NDArray[np.bool_]:
    """Return a mask as truth values."""
    return np.unpackbits(mask.view(np.uint8), count=count, bitorder="little").view(np.bool_)


def mask_of(tokens: Sequence[int], logits: int) -> Mask:
    bits = np.zeros(words(logits) * WORD_BITS, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def _bit(mask: Mask, token: int) -> bool:
    return 0 <= token < len(mask) * WORD_BITS and bool(int(mask[token // WORD_BITS]) >> token % WORD_BITS & 1)
