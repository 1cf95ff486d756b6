"""Drafts of what follows: what followed the last tokens where they occurred before, if that has paid so far.

A step that checks candidates takes longer than a plain one: 1.1 times as long for three candidates of one
stream, 2.5 times with eight streams. What is accepted depends on the text. Both are measured while the engine
works, so the number of candidates is decided for each step. With more than MOST_STREAMS nothing is drafted.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

SIZES = 3, 2  # of the runs of tokens that are looked for, the longest first
FORCED = 0  # instead of a size: the only text that the grammar allows
FIRST_RATES = {3: 0.6, 2: 0.3, FORCED: 0.8}  # of acceptance, per token, before anything is known
MEMORY = 0.9  # of what is known, kept at each draft
TRUST = 2.0  # tokens, as many as the first rates count
RECOVERY = 0.02  # of a rate, at each draft that is not tried: it is tried again in the end
MOST_STREAMS = 4
MOST = 8  # candidates of a request
GAIN = 1.08  # at least: less is lost to steps that are measured wrong and to tries that fail
FORGETTING = 0.01  # of what steps with candidates took, at each decision
ROW = 0.1  # of a plain step, what another row takes before it is measured


class Lookup:
    """Finds drafts for one request in its own prompt and answer."""

    def __init__(self, ids: array[int], most: int) -> None:
        """`ids` grow by themselves. `most`: candidates that this request allows."""
        self._ids = ids
        self._most = min(most, MOST)
        self._followed: dict[tuple[int, ...], int] = {}  # where the token after a run is, the last time
        self._indexed = 0
        self._right = {size: rate * TRUST for size, rate in FIRST_RATES.items()}
        self._tried = dict.fromkeys(FIRST_RATES, TRUST)
        self._size = FORCED  # of the last run that was found
        self._drafted = 0  # tokens, in this step

    def find(self) -> tuple[tuple[int, ...], float]:
        """Return candidates, and the rate at which they are probably right."""
        ids, followed = self._ids, self._followed
        for at in range(max(self._indexed, SIZES[0]), len(ids)):
            for size in SIZES:
                followed[tuple(ids[at - size : at])] = at
        self._indexed = len(ids)
        for size in SIZES:
            if tail := followed.get(tuple(ids[-size:])):
                self._size = size
                return tuple(ids[tail : tail + self._most]), self._right[size] / self._tried[size]
        return (), 0.0

    def forced(self, tokens: Iterable[int]) -> tuple[tuple[int, ...], float]:
        """Return the tokens of a text that must follow as candidates: the model may cut it otherwise."""
        self._size = FORCED
        return tuple(tokens)[: self._most], self._right[FORCED] / self._tried[FORCED]

    def skipped(self) -> None:
        """The last candidates were not worth a try."""
        self._right[self._size] += RECOVERY * (self._tried[self._size] - self._right[self._size])

    def checked(self, drafted: int, accepted: int) -> None:
        size, wrong = self._size, accepted < drafted
        self._right[size] = MEMORY * self._right[size] + accepted
        self._tried[size] = MEMORY * self._tried[size] + accepted + wrong
        self._drafted += drafted

    def read(self, ids: list[int], kept: int) -> tuple[int, int]:
        """Count a step whose first `kept` ids belong to the answer; return drafted and accepted tokens."""
        drafted, self._drafted = self._drafted, 0
        return drafted, min(kept, len(ids) - 1) if drafted else 0


class StepCosts:
    """The duration of steps with more rows, relative to plain ones of the same requests."""

    def __init__(self) -> None:
        self._plain: dict[int, float] = {}  # seconds, by rows
        self._ratios: dict[tuple[int, int], float] = {}  # by requests and rows

    def measured(self, requests: int, rows: int, seconds: float) -> None:
        if requests > MOST_STREAMS:
            return
        if rows == requests:
            self._plain[rows] = _mixed(self._plain.get(rows), seconds)
        elif (plain := self._plain.get(requests)) is not None:
            key = requests, rows
            self._ratios[key] = _mixed(self._ratios.get(key), seconds / plain)

    def ratio(self, requests: int, rows: int) -> float:
        known = self._ratios.get((requests, rows))
        return 1 + ROW * (rows - requests) if known is None else known

    def best(self, requests: int, rate: float, most: int) -> int:
        """Return how many candidates of one request pay most among `requests`, each right with `rate`."""
        self._forget(requests)
        best, gain = 0, GAIN
        right = extra = 0.0
        for count in range(1, most + 1):
            right = rate if count == 1 else right * rate
            extra += right
            found = (requests + extra) / requests / self.ratio(requests, requests + count)
            if found > gain:
                best, gain = count, found
        return best

    def _forget(self, requests: int) -> None:
        """Bring what is known nearer to what is assumed, so that a number that was slow once is tried
        again."""
        for (others, rows), ratio in self._ratios.items():
            if others == requests:
                assumed = 1 + ROW * (rows - requests)
                self._ratios[others, rows] = ratio + FORGETTING * (assumed - ratio)


def _mixed(old: float | None, new: float) -> float:
    """Other work on the machine only makes steps longer, so shorter ones say more."""
    if old is None:
        return new
    return old + (0.5 if new < old else 0.1) * (new - old)
