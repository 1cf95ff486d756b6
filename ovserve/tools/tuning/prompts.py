"""The prompts of measurements: the operator's own, or a mix of everyday chats.

No two prompts of the mix begin alike, so a prefix cache gains nothing that it would not gain in service. They
are natural language, so drafting is neither helped by repetition nor hurt by noise.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from ovserve.errors import InvalidArgument

_TOPICS = (
    "a lighthouse keeper who collects weather reports", "the repair of an old bicycle", "sourdough bread",
    "a small town that loses its railway", "how tides work", "the first winter on a farm",
    "choosing a laptop for school", "a detective who cannot remember faces", "growing tomatoes on a balcony",
    "the history of paper", "a letter to a landlord about a broken heater", "learning to swim at forty",
)  # fmt: skip
_TASKS = (
    "Write a short story about {}.",
    "Explain to a curious ten year old what matters about {}.",
    "Give me seven practical tips about {}, each with one sentence of reason.",
    "Write the opening of a newspaper article about {}.",
)
_SENTENCES = (
    "The harbour was built in three stages, of which the first took eight years.",
    "A stone pier of two hundred metres protects the boats from the north wind.",
    "The fishing fleet grew to ninety boats, and an inner basin had to be added.",
    "Its lock keeps the water level when the tide is low.",
    "Most of the boats are gone today, and the basin has become a marina.",
    "Ferries to the islands leave four times a day in summer and twice in winter.",
    "A storm in January damaged the pier, and its repair will cost eleven million.",
    "The council will decide in spring whether the lighthouse can stay a museum.",
    "Visitors climb its hundred and twelve steps for a view over the whole bay.",
    "A school for boat builders has moved into the old warehouses by the quay.",
)
_NAMES = ("values", "prices", "readings", "scores", "lengths", "weights")
_CODE = """\
def moving_average({0}, window):
    result, total = [], 0
    for index, value in enumerate({0}):
        total += value
        if index >= window:
            total -= {0}[index - window]
        if index >= window - 1:
            result.append(total / window)
    return result"""


class Prompts:
    """A source of prompts: `own` in their order, over and over; without them the mix."""

    def __init__(self, own: Sequence[str] = ()) -> None:
        self._own = tuple(own)
        self._next = 0

    def take(self, count: int) -> list[str]:
        """Return the next ones; those of the mix are all new, and the same in every run."""
        numbers = range(self._next, self._next + count)
        self._next += count
        return [self._own[i % len(self._own)] if self._own else _mixed(i) for i in numbers]


def read(file: Path) -> list[str]:
    """Read one prompt per line: plain text, or a JSON object with `prompt`. Raises InvalidArgument."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"--prompts: {file} cannot be read: {error}") from error
    prompts = [_line(line, f"--prompts: {file}:{i}") for i, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise InvalidArgument(f"--prompts: {file} has no prompt")
    return prompts


def _line(line: str, where: str) -> str:
    if not line.lstrip().startswith("{"):
        return line
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, KeyError):
        raise InvalidArgument(f"{where}: expected text, or a JSON object with a prompt") from None
    if not isinstance(prompt, str) or not prompt:
        raise InvalidArgument(f"{where}: prompt: expected text, got {prompt!r}")
    return prompt


def _mixed(number: int) -> str:
    """Return a chat: of four, two are free, one has a text to summarise and one has code to change."""
    chance = random.Random(number)
    if number % 4 == 1:
        text = " ".join(chance.sample(_SENTENCES, 7))
        return f"{number}. Summarise this in two sentences:\n\n{text}"
    if number % 4 == 3:
        old, new = chance.sample(_NAMES, 2)
        code = _CODE.format(old)
        return f"{number}. Rename `{old}` to `{new}` and give back all of the code.\n\n{code}"
    return f"{number}. {chance.choice(_TASKS).format(chance.choice(_TOPICS))}"
