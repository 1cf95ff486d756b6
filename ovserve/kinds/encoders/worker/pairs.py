"""Join a query and a document to one row, by the model's family: BERT's and RoBERTa's forms differ.

The tokenizer's own template for pairs is used where it has one. Otherwise the special tokens come from the
files of the model, and the form from its family:

    BERT        [CLS] query [SEP] document [SEP]        types 0, then 1
    RoBERTa     <s> query </s></s> document </s>        no types
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ovserve.errors import LoadError
from ovserve.kinds.encoders.files import POSITIONS_BEHIND_PADDING
from ovserve.kinds.encoders.worker.tokens import FastTokenizer, Row, TextTokenizer


@dataclass(frozen=True)
class PairForm:
    """The special tokens around the two texts, and whether the second has a type of its own."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    typed: bool

    @property
    def special(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)

    def row(self, query: Row, document: Row) -> tuple[Row, int]:
        """Return the ids, and where the tokens of type 1 begin."""
        parts = (self.before, query, self.between, document, self.after)
        row = np.concatenate([np.asarray(part, np.int32) for part in parts])
        start = len(self.before) + len(query) + len(self.between)
        return row, start if self.typed else len(row)


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the tokens that are kept of two texts: the longer one is cut, and both to half of the room where
    that is not enough, as tokenizers do by default."""
    if first + second <= room:
        return first, second
    shorter = min(first, second, room // 2)
    return (shorter, room - shorter) if first <= second else (room - shorter, shorter)


JOINED = PairForm((), (), (), typed=False)  # the texts are concatenated before they are tokenised


def pair_form(directory: Path, tokenizer: TextTokenizer, model_type: str) -> PairForm:
    """Raises LoadError when the special tokens are not found."""
    if isinstance(tokenizer, FastTokenizer) and (template_form := _of_template(tokenizer)) is not None:
        return template_form
    roberta = model_type in POSITIONS_BEHIND_PADDING
    first = _special(directory, tokenizer, ("bos", "cls") if roberta else ("cls", "bos"))
    last = _special(directory, tokenizer, ("eos", "sep") if roberta else ("sep", "eos"))
    return PairForm((first,), (last, last) if roberta else (last,), (last,), typed=not roberta)


def _of_template(tokenizer: FastTokenizer) -> PairForm | None:
    """The tokenizer's own form; None if it puts nothing between the texts."""
    bare = tokenizer.encode(["a"], special=False)[0].tolist()
    ids, types = tokenizer.pair("a", "a")
    size = len(bare)
    at = [i for i in range(len(ids) - size + 1) if size and ids[i : i + size] == bare]
    if len(at) < 2:
        return None
    first, second = at[0], at[-1]
    between = tuple(ids[first + size : second])
    if not between:
        return None
    return PairForm(tuple(ids[:first]), between, tuple(ids[second + size :]), typed=types[second] == 1)


def _special(directory: Path, tokenizer: TextTokenizer, names: Sequence[str]) -> int:
    """Return the id of the first of these tokens that the files define; 0 is an id like any other."""
    config = _read(directory / "config.json")
    files = [_read(directory / name) for name in ("special_tokens_map.json", "tokenizer_config.json")]
    for name in names:
        for fields in files:
            token = fields.get(f"{name}_token")
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str) and (id_ := tokenizer.id_of(text)) is not None:
                return id_
        if isinstance(config.get(f"{name}_token_id"), int):
            return int(config[f"{name}_token_id"])
    listed = " and no ".join(f"{name}_token" for name in names)
    raise LoadError(
        f"has no {listed} in special_tokens_map.json, tokenizer_config.json and config.json",
        file=str(directory),
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
