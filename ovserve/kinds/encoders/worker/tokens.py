"""Text to token ids without padding or truncation, by tokenizer.json or by a tokenizer in OpenVINO IR form.

The library `tokenizers` is preferred: it releases the interpreter lock while it works. OpenVINO's own holds
it, and is used for directories that have no tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ovserve.errors import InvalidArgument, LoadError
from ovserve.kinds.encoders.files import FAST, TOKENIZER, TOKENIZER_IR
from ovserve.llm.token_bytes import byte_of_character

Row = NDArray[np.signedinteger[Any]]  # token ids of one input
BYTES = byte_of_character()
SHORT_TEXT_CHARACTERS = 1000  # characters
AT_ONCE = 64  # texts per call: the library keeps about 100 bytes per token until they are copied


class TextTokenizer(Protocol):
    vocab_size: int

    def encode(self, texts: Sequence[str], special: bool = True) -> list[Row]: ...

    def decode(self, rows: Sequence[Sequence[int]], skip_special: bool) -> list[str]: ...

    def token(self, id_: int) -> str: ...

    def vocabulary_bytes(self, id_: int) -> bytes: ...

    def id_of(self, token: str) -> int | None: ...


class FastTokenizer:
    """tokenizer.json, read by the library `tokenizers`."""

    def __init__(self, file: Path) -> None:
        import tokenizers

        try:
            self._inner = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:
            raise LoadError(f"cannot be read: {error}", file=str(file)) from error
        self._inner.no_padding()
        self._inner.no_truncation()
        self.vocab_size = int(self._inner.get_vocab_size(with_added_tokens=True))

    def encode(self, texts: Sequence[str], special: bool = True) -> list[Row]:
        # The call for many hands them to a thread: 34 us of CPU time for 16 tokens, not 20. But that for one
        # holds Python's lock, 0.5 s for each MB of text, and with it every other model of the process.
        if len(texts) == 1 and len(texts[0]) <= SHORT_TEXT_CHARACTERS:
            return [np.array(self._inner.encode(texts[0], add_special_tokens=special).ids, np.int32)]
        rows: list[Row] = []
        for start in range(0, len(texts), AT_ONCE):
            some = list(texts[start : start + AT_ONCE])
            encoded = self._inner.encode_batch_fast(some, add_special_tokens=special)
            rows += [np.array(one.ids, np.int32) for one in encoded]
        return rows

    def pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Return ids and types of two texts by the tokenizer's own template."""
        encoded = self._inner.encode(first, second)
        return list(encoded.ids), list(encoded.type_ids)

    def decode(self, rows: Sequence[Sequence[int]], skip_special: bool) -> list[str]:
        return list(self._inner.decode_batch([list(row) for row in rows], skip_special_tokens=skip_special))

    def token(self, id_: int) -> str:
        return self._inner.id_to_token(id_) or ""

    def vocabulary_bytes(self, id_: int) -> bytes:
        token = self.token(id_)
        if BYTES.keys() >= {*token}:
            return bytes(BYTES[character] for character in token)
        return token.encode()

    def id_of(self, token: str) -> int | None:
        token_id: int | None = self._inner.token_to_id(token)
        return token_id


class IRTokenizer:
    """openvino_tokenizer.xml, as OVMS's model directories have it."""

    def __init__(self, directory: Path) -> None:
        import openvino_genai

        try:
            self._inner = openvino_genai.Tokenizer(str(directory))
        except RuntimeError as error:
            raise LoadError(f"cannot be read: {error}", file=str(directory / TOKENIZER_IR)) from error
        self.vocab_size = len(self._inner.get_vocab())

    def encode(self, texts: Sequence[str], special: bool = True) -> list[Row]:
        rows: list[Row] = []
        for text in texts:  # one by one: in a batch it pads, and a long text would widen all others
            ids = self._inner.encode(text, add_special_tokens=special).input_ids.data
            rows.append(np.array(ids[0], np.int32))
        return rows

    def decode(self, rows: Sequence[Sequence[int]], skip_special: bool) -> list[str]:
        return [self._inner.decode(list(row), skip_special_tokens=skip_special) for row in rows]

    def token(self, id_: int) -> str:
        return str(self._inner.decode([id_], skip_special_tokens=False))

    def vocabulary_bytes(self, id_: int) -> bytes:
        return self._vocabulary.get(id_, b"")

    @cached_property
    def _vocabulary(self) -> dict[int, bytes]:
        return {id_: token for token, id_ in self._inner.get_vocab().items()}

    def id_of(self, token: str) -> int | None:
        token_id = self._inner.get_vocab().get(token)
        return None if token_id is None else int(token_id)


def open_tokenizer(directory: Path) -> TextTokenizer:
    """Raises LoadError."""
    if (directory / TOKENIZER).is_file():
        return FastTokenizer(directory / TOKENIZER)
    if (directory / TOKENIZER_IR).is_file():
        return IRTokenizer(directory)
    raise LoadError(f"has no {FAST}", file=str(directory))


class Framed:
    """A tokenizer and the special tokens that it puts around one text."""

    def __init__(self, inner: TextTokenizer) -> None:
        self.inner = inner
        bare, framed = (inner.encode(["a"], special)[0].tolist() for special in (False, True))
        at = next((i for i in range(len(framed)) if framed[i : i + len(bare)] == bare), 0)
        self.before: tuple[int, ...] = tuple(framed[:at])
        self.after: tuple[int, ...] = tuple(framed[at + len(bare) :])

    @property
    def special(self) -> int:
        return len(self.before) + len(self.after)

    def fit(self, row: Row, most: int) -> Row:
        """Return the ids cut to `most`; what the tokenizer puts behind a text stays at the end."""
        if len(row) <= most:
            return row
        last = len(self.after)
        if not last or last >= most or tuple(row[-last:].tolist()) != self.after:
            return row[:most]
        return np.concatenate((row[: most - last], row[-last:]))


def check_ids(rows: Sequence[Row], vocab_size: int, param: str) -> None:
    """Raises InvalidArgument: the model would read outside of its table."""
    for i, row in enumerate(rows):
        if row.size and (int(row.max()) >= vocab_size or int(row.min()) < 0):
            wrong = int(row[(row >= vocab_size) | (row < 0)][0])
            raise InvalidArgument(
                f"{param}[{i}]: token id {wrong} is not in the model's vocabulary of {vocab_size}",
                param=f"{param}[{i}]",
            )
