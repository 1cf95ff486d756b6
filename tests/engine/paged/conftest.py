"""Vocabularies of real models, and texts at random under masks made for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovserve.errors import LoadError
from ovserve.kinds.text.worker.genai.vocabulary import Vocabulary, read_vocabulary
from ovserve.kinds.text.worker.paged.grammars import Compiler, library
from ovserve.kinds.text.worker.paged.masks import Matcher, mask_bits, restrict, words
from ovserve.llm.grammar.constraint import Format, constrain, structural_tag

QWEN = Path(__file__).parents[3] / "models/qwen2.5-coder-0.5b"
CLOSING = (b'"', b"}", b"]", b'"}', b'"]', b"</", b">", b"\n")  # what ends texts that have no bound
HURRY = 40  # tokens, after which those are liked


class Masks:
    """A vocabulary and its compiler."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.compiler = Compiler(*vocabulary)
        self._compiled: dict[str, Any] = {}
        self.id_of = {text: id_ for id_, text in enumerate(vocabulary.texts) if text}
        # Random logits are cut from these at random places: to draw a row of them takes 1.2 ms, to cut it 0.02.
        count = 8 * vocabulary.logits
        self._gumbel = np.random.default_rng(0).gumbel(size=count).astype(np.float32)
        self._normal = np.random.default_rng(1).normal(0, 3, count).astype(np.float32)
        self._liked = [self.id_of[text] for text in CLOSING if text in self.id_of] + [*vocabulary.eos_ids]

    def matcher(self, form: Format) -> Matcher:
        tag = structural_tag(constrain(form, "x").format)
        if tag not in self._compiled:
            self._compiled[tag], fault = self.compiler.compile(tag)
            assert not fault, fault
        return self.compiler.matcher(self._compiled[tag])

    def row(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        return np.empty(words(self.vocabulary.logits), np.int32)

    def allowed(self, matcher: Matcher) -> np.ndarray[Any, np.dtype[np.bool_]]:
        row = self.row()
        matcher.fill(row)
        return mask_bits(row, self.vocabulary.logits)

    def tokens(self, text: bytes) -> list[int]:
        """The longest tokens first, which no tokenizer would always choose."""
        found = []
        while text:
            size = next(size for size in range(min(len(text), 24), 0, -1) if text[:size] in self.id_of)
            found.append(self.id_of[text[:size]])
            text = text[size:]
        return found

    def admits(self, form: Format, text: bytes) -> bool:
        matcher = self.matcher(form)
        return all(map(matcher.accept, self.tokens(text))) and matcher.may_end

    def _cut(
        self, values: np.ndarray[Any, np.dtype[np.float32]], random: np.random.Generator
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        at = random.integers(len(values) - self.vocabulary.logits)
        return values[at : at + self.vocabulary.logits]

    def anything(self, form: Format, seed: int, tokens: int = 200) -> tuple[bytes, bool]:
        """A text at random under the masks, and whether it came to its end. Tokens of even seeds are equally
        likely, those of odd ones have random logits and a temperature of 2."""
        random, matcher, found = np.random.default_rng(seed), self.matcher(form), []
        rows = np.empty((1, words(self.vocabulary.logits)), np.int32)
        for step in range(tokens):
            logits = self._cut(self._gumbel, random)[None].copy()
            if seed % 2:
                logits += self._cut(self._normal, random)
            if step >= HURRY:
                logits[0, self._liked] += 20
            if matcher.fill(rows[0]):
                restrict(logits[0], rows[0])
            token = int(logits[0].argmax())
            assert np.isfinite(logits[0, token]), found
            assert matcher.accept(token), found
            if token in self.vocabulary.eos_ids:
                return b"".join(found), True
            found.append(self.vocabulary.texts[token])
        return b"".join(found), False


def made_for(path: Path) -> Masks:
    try:
        library()
    except LoadError as error:
        pytest.skip(error.message)
    return Masks(read_vocabulary(str(path)))


@pytest.fixture(scope="session")
def masks(model: Path) -> Masks:
    return made_for(model.parent)


@pytest.fixture(scope="session")
def wide() -> Masks:
    """151,936 tokens."""
    if not QWEN.is_dir():
        pytest.skip(f"{QWEN.name} is missing; `ovserve pull {QWEN.name}` fetches it")
    return made_for(QWEN)
