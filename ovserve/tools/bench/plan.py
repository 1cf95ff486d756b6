"""Draw prompts, lengths and times of all requests before the first is sent, so
that the same seed sends the same requests to every server.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ovserve.errors import InvalidArgument

WORDS = (
    "the", "harbour", "was", "built", "in", "three", "parts", "and", "a", "stone", "wall", "keeps", "boats",
    "from", "north", "wind", "when", "tide", "is", "low", "people", "walk", "on", "sand", "to", "old", "inn",
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One request. `at`: seconds after the start, or None: as soon as a client is free."""

    prompt: str
    max_tokens: int
    at: float | None = None


@dataclass(frozen=True)
class Lengths:
    """A uniform distribution from `least` to `most`."""

    least: int
    most: int

    def draw(self, chance: random.Random) -> int:
        return chance.randint(self.least, self.most)


def lengths(text: str, option: str) -> Lengths:
    """Parse `128` or `16-256`. Raises InvalidArgument."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= least <= most:
        raise InvalidArgument(f"{option}: expected a number from 1 such as 128, or 16-256; got {text!r}")
    return Lengths(least, most)


def jobs(
    count: int,
    prompts: Sequence[str],
    answer: Lengths,
    *,
    prompt: Lengths | None = None,
    rate: float | None = None,
    seed: int = 0,
) -> list[Job]:
    """Draw the jobs from `prompts` in turn, or generate prompts of `prompt` words, no two with the same
    beginning.

    `rate` is requests per second, at times as independent clients arrive (a Poisson process).
    """
    chance = random.Random(seed)
    made, at = [], 0.0
    for i in range(count):
        text = prompts[i % len(prompts)] if prompt is None else _words(i, prompt.draw(chance), chance)
        made.append(Job(text, answer.draw(chance), None if rate is None else at))
        at += chance.expovariate(rate) if rate is not None else 0.0
    return made


def _words(number: int, count: int, chance: random.Random) -> str:
    return " ".join([str(number), *chance.choices(WORDS, k=count - 1)])
