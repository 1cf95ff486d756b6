"""Token ids to text: a few at a time by a tokenizer's own decoder, or by a table of the bytes of each token.

A token cannot be decoded alone: SentencePiece drops the blank before the first word, and one character may
span four tokens. So each sequence keeps its last few ids as context (`TokenWindow`), and the new text is
decode(context + new) without decode(context). Both rows go into the one batched decode of the step, because a
decode call costs some 60 us whatever its size, and a row in it 1 us.

Tokenizers differ in the text of an unfinished character: some return up to three U+FFFD, some (those read
from GGUF among them) leave it out. The U+FFFD are held back, three at most, until the character is complete.
So invalid bytes, which never complete, are not withheld for long.

In a byte-level BPE vocabulary (GPT-2's scheme: Llama 3, Qwen, SmolLM, ...) a token is a run of bytes and text
is their concatenation. The library's detokenizer is a compiled model. Running it right after a step, its
threads asleep, costs 200 to 450 us however few the rows; the table costs 40 to 100. At one stream that is 2 %
of all tokens per second. The kind of a tokenizer is not guessed from its name: at load, during the first
answer, every token is decoded once and compared, then rows of many. All other tokenizers use the library.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
# Ids; must reach back to the first byte of an unfinished character, which is three at most.
CONTEXT_TOKENS = 6
MAX_HELD = 3


class TokenWindow:
    __slots__ = ("_context", "held", "pending")

    def __init__(self) -> None:
        self._context: list[int] = []
        self.held = 0  # U+FFFD at the end of the context's text that were not sent
        self.pending: list[int] = []

    def push(self, ids: Sequence[int]) -> None:
        self.pending += ids

    def rows(self, *, each: bool = False) -> list[list[int]]:
        """Return the two rows to decode for `take()`. `each`: those of its beginnings between the two."""
        whole = self._context + self.pending
        begins = range(len(self._context) + 1, len(whole)) if each else ()
        return [self._context, *[whole[:end] for end in begins], whole]

    def take(self, context_text: str, whole_text: str) -> str:
        """Return the new text, given the decoded rows."""
        start = len(context_text) - self.held
        tail = whole_text[-MAX_HELD:]
        self.held = min(len(tail) - len(tail.rstrip(REPLACEMENT)), len(whole_text) - start)
        self._context = (self._context + self.pending)[-CONTEXT_TOKENS:]
        self.pending = []
        return whole_text[start : len(whole_text) - self.held]

    def flush(self) -> str:
        """Return the withheld text, once nothing more can follow."""
        held, self.held = self.held, 0
        return REPLACEMENT * held


def tokens_before(end: int, prefixes: Sequence[str]) -> int:
    """Return the index of the first text that has whole characters up to `end`, or of one more."""
    enough = (i for i, text in enumerate(prefixes) if len(text.rstrip(REPLACEMENT)) >= end)
    return next(enough, len(prefixes))


Rows = list[list[int]]
ROW_TOKENS = 16
BATCH_TOKENS = 4096
BYTE_TOKEN = re.compile(rb"<0x([0-9A-F]{2})>")  # SentencePiece's
PROBE = "é日本語 🎉👩‍🚀 ż .,!? 's n't"


class TokenBytes:
    def __init__(self, table: Sequence[bytes], errors: str) -> None:
        """`table`: the bytes of each token by id, none of an id without a token."""
        self._table = table
        self._errors = errors

    @property
    def longest(self) -> int:
        return max(map(len, self._table), default=0)

    def of(self, id_: int) -> bytes:
        return self._table[id_] if 0 <= id_ < len(self._table) else b""

    def decode(self, rows: Rows) -> list[str]:
        # Models with a padded output layer can choose ids without a token; the library skips them too.
        table, size, errors = self._table, len(self._table), self._errors
        return [b"".join([table[id_] for id_ in row if id_ < size]).decode("utf-8", errors) for row in rows]


def token_bytes(text: str, token: bytes) -> bytes:
    """Return the bytes of a token of this text: of a part of a character those in the vocabulary."""
    if text and REPLACEMENT not in text:
        return text.encode()
    if byte := BYTE_TOKEN.fullmatch(token):
        return bytes([int(byte[1], 16)])
    return text.encode() if _is_text(token) else token


def byte_of_character() -> dict[str, int]:
    """Return the byte for each character that stands for one in byte-level vocabularies: GPT-2's table."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def validate(vocabulary: dict[bytes, int], decode: Callable[[Rows], list[str]]) -> TokenBytes | None:
    """Return the table; None if it would answer differently. `decode` is the library's, for rows of one
    length."""
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)  # a dictionary takes five times the memory
    for token, id_ in vocabulary.items():
        table[id_] = token
    singles = [[id_] for id_ in vocabulary.values()]
    texts = [
        text
        for at in range(0, len(singles), BATCH_TOKENS)
        for text in decode(singles[at : at + BATCH_TOKENS])
    ]
    for errors in ("ignore", "replace"):
        candidate = TokenBytes(table, errors)
        if candidate.decode(singles) == texts and _agree_on_rows(candidate, vocabulary, decode):
            return candidate
    return None


def _agree_on_rows(
    candidate: TokenBytes, vocabulary: dict[bytes, int], decode: Callable[[Rows], list[str]]
) -> bool:
    whole = [id_ for token, id_ in vocabulary.items() if b"\xef\xbf\xbd" not in token and _is_text(token)]
    random.Random(0).shuffle(whole)
    rows = [whole[at : at + ROW_TOKENS] for at in range(0, len(whole) - ROW_TOKENS, ROW_TOKENS)]
    if rows and candidate.decode(rows) != decode(rows):
        return False
    probe = [vocabulary.get(bytes([byte])) for byte in PROBE.encode()]
    row = [id_ for id_ in probe if id_ is not None]
    return len(row) == len(probe) and candidate.decode([row]) == decode([row]) == [PROBE]


def _is_text(token: bytes) -> bool:
    try:
        token.decode()
    except UnicodeDecodeError:
        return False
    return True
