"""The paragraphs of a text file, ranked for a question by the words that they share (tf-idf)."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

WORD = re.compile(r"\w{3,}")


class Passage(NamedTuple):
    """A paragraph, and its file and line."""

    text: str
    place: str


class Index:
    """Raises OSError or ValueError for a file that cannot be read as UTF-8."""

    def __init__(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        self.passages: list[Passage] = []
        for match in re.finditer(r"\S.*?(?=\n\s*\n|\Z)", text, re.DOTALL):
            line = text.count("\n", 0, match.start()) + 1
            self.passages.append(Passage(" ".join(match[0].split()), f"{path.name}:{line}"))
        self._words = [Counter(words(p.text)) for p in self.passages]
        self._holding = Counter(word for counted in self._words for word in counted)

    def facts(self) -> dict[str, object]:
        return {"passages": len(self.passages), "words": len(self._holding)}

    def search(self, question: str, most: int) -> list[Passage]:
        """Return the best passages, the best one first; none if no word is shared."""
        asked = set(words(question))
        scores = [sum(counted[w] * self._weight(w) for w in asked) for counted in self._words]
        ranked = sorted(range(len(scores)), key=lambda i: -scores[i])
        return [self.passages[i] for i in ranked[:most] if scores[i] > 0]

    def _weight(self, word: str) -> float:
        return math.log(1 + len(self.passages) / (1 + self._holding[word]))


def words(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]
