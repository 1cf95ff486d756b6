"""N-gram drafting: propose the tokens that followed the last n-gram, if that saves time.

Candidates are first evaluated without being computed: they are compared with what followed in the answer. A
request has them in its steps while those of its last tokens would have won time, by what such steps took so
far, and the next ones promise MIN_GAIN.

A step with candidates takes longer than a plain one, and the runtime prepares both anew where one follows
the other. With SmolLM2 on an AMD EPYC it takes 2.3 times as long for one stream, and 1.6 times after one
like it. For two streams it takes 1.6 and 1.2 times. A large model is measured at load (eight layers of
3B, CPU time: 1.2 times for 2 tokens, 1.5 for 4). With more than MAX_DRAFTED_STREAMS nothing is drafted.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

import numpy as np

NGRAM_SIZES = 3, 2  # of the runs of tokens that are looked for, the longest first
FORCED_TEXT = 0  # instead of a size: the only text that the grammar allows
FIRST_RATES = {3: 0.5, 2: 0.25, FORCED_TEXT: 0.8}  # of acceptance, per token, before anything is known
RATE_EWMA_WEIGHT = 0.9  # of what is known, kept at each candidate that is compared
FIRST_RATE_WEIGHT = 2.0  # tokens, as many as the first rates count
MAX_DRAFTED_STREAMS = 4
MAX_DRAFT_TOKENS = 8  # candidates of a request
MIN_GAIN = 1.2  # at least: rates change, and steps are measured wrong
RATIO_DECAY = 0.005  # of what steps with candidates took, at each decision
SINGLE_FORM_COST = 1.0  # of a plain step of one request: one with candidates leaves the form
CHANGED_FORM_COST = 0.4  # for one token, and for others, before it is measured
EXTRA_ROW_COST = 0.08  # the same, of another row: less for more requests
# What a token of one request saves is less than its part of a step, because steps go on for the others.
SAVING_EXPONENT = 1.1  # exponent of the number of requests
COST_EWMA_WEIGHT = 0.3  # the part of what is measured in what is known
MAX_OUTLIER_RATIO = 2.0  # times what is known, the most that a step counts: other work may have held it up
FIRST_ACCOUNT_TOKENS = -3.0  # tokens: so many must be won before a draft is computed
MAX_ACCOUNT_TOKENS = 4.0  # tokens at most that count as won or lost: what was long ago says little


class ShadowDraft(NamedTuple):
    """Candidates that are in no step."""

    at: int  # of the first of them, among the tokens of the request
    tokens: tuple[int, ...]
    costs: float | None  # None: they would not be in a step, but are compared
    size: int


class Lookup:
    """Finds drafts for one request in its own prompt and answer."""

    def __init__(self, ids: array[int], most: int) -> None:
        """`ids` grow by themselves. `most`: candidates that this request allows."""
        self._ids = ids
        self._most = min(most, MAX_DRAFT_TOKENS)
        self._followed: dict[tuple[int, ...], int] = {}  # where the token after a run is, the last time
        self._indexed = 0
        self._right = {size: rate * FIRST_RATE_WEIGHT for size, rate in FIRST_RATES.items()}
        self._tried = dict.fromkeys(FIRST_RATES, FIRST_RATE_WEIGHT)
        self._size = FORCED_TEXT  # of the last run that was found
        self._account = FIRST_ACCOUNT_TOKENS  # tokens won, by drafts that were computed and by shadow drafts
        self._shadow: ShadowDraft | None = None
        self._drafted = 0  # tokens, in this step

    def find(self) -> tuple[tuple[int, ...], float]:
        """Return candidates, and the rate at which they are probably right."""
        ids, followed = self._ids, self._followed
        for at in range(max(self._indexed, NGRAM_SIZES[0]), len(ids)):
            for size in NGRAM_SIZES:
                followed[tuple(ids[at - size : at])] = at
        self._indexed = len(ids)
        for size in NGRAM_SIZES:
            if tail := followed.get(tuple(ids[-size:])):
                self._size = size
                return tuple(ids[tail : tail + self._most]), self._right[size] / self._tried[size]
        return (), 0.0

    def forced(self, tokens: Iterable[int]) -> tuple[tuple[int, ...], float]:
        """Return the tokens of a text that must follow as candidates: the model may cut it otherwise."""
        self._size = FORCED_TEXT
        return tuple(islice(tokens, self._most)), self._right[FORCED_TEXT] / self._tried[FORCED_TEXT]

    def chosen(self, found: tuple[int, ...], count: int, costs: float) -> tuple[int, ...]:
        """Return the first `count` of the candidates, or none if they are only compared.

        `costs`: tokens that plain steps would have given in the time that these take."""
        self._compare()
        forced = self._size == FORCED_TEXT  # they are hardly ever wrong
        pays = self._account > 0 or (forced and self._account >= FIRST_ACCOUNT_TOKENS)
        if count and pays and (self._shadow is None or forced):
            self._shadow = None
            return found[:count]
        if self._shadow is None:
            tried = found[: max(count, 1)]
            self._shadow = ShadowDraft(len(self._ids), tried, costs if count else None, self._size)
        return ()

    def verified(self, drafted: int, accepted: int, costs: float) -> None:
        self._learn(self._size, drafted, accepted)
        self._won(accepted - costs)
        self._drafted += drafted

    def _compare(self) -> None:
        """Settle the shadow draft, if what followed is known."""
        if (shadow := self._shadow) is None:
            return
        followed = self._ids[shadow.at : shadow.at + len(shadow.tokens)]
        right = 0
        while right < len(followed) and followed[right] == shadow.tokens[right]:
            right += 1
        if right == len(followed) < len(shadow.tokens):
            return
        self._learn(shadow.size, len(shadow.tokens), right)
        if shadow.costs is not None:
            self._won(right - shadow.costs)
        self._shadow = None

    def _learn(self, size: int, drafted: int, right: int) -> None:
        self._right[size] = RATE_EWMA_WEIGHT * self._right[size] + right
        self._tried[size] = RATE_EWMA_WEIGHT * self._tried[size] + right + (right < drafted)

    def _won(self, tokens: float) -> None:
        self._account = max(-MAX_ACCOUNT_TOKENS, min(self._account + tokens, MAX_ACCOUNT_TOKENS))

    def read(self, ids: list[int], kept: int) -> tuple[int, int]:
        """Count a step whose first `kept` ids belong to the answer; return drafted and accepted tokens."""
        drafted, self._drafted = self._drafted, 0
        return drafted, min(kept, len(ids) - 1) if drafted else 0


class ModelDrafts:
    """Counts what a draft model proposes for one request."""

    def __init__(self, most: int) -> None:
        """`most`: candidates in a step."""
        self.most = most
        self._drafted = 0

    def verified(self, drafted: int) -> None:
        self._drafted += drafted

    def read(self, ids: list[int], kept: int) -> tuple[int, int]:
        """Return drafted and accepted tokens of a step whose first `kept` ids belong to the answer."""
        drafted, self._drafted = self._drafted, 0
        return drafted, min(kept, len(ids) - 1) if drafted else 0


class StepCosts:
    """The duration of steps with more rows, relative to plain ones of the same requests."""

    def __init__(self, measured: Mapping[int, float] | None = None) -> None:
        """`measured`: seconds of steps of so many rows of one request, if no form of one row is faster."""
        self._curve = dict(measured or {})
        self._plain: dict[int, float] = {}  # seconds, by rows
        self._ratios: dict[tuple[int, int], float] = {}  # by requests and rows
        self._after: dict[tuple[int, int], float] = {}  # how much longer the plain step after it takes
        self._last: tuple[int, int] | None = None

    def measured(self, requests: int, rows: int, seconds: float) -> None:
        """Learn from a step of answers only."""
        if requests > MAX_DRAFTED_STREAMS:
            self._last = None
            return
        last, self._last = self._last, (requests, rows)
        plain = self._plain.get(requests)
        if rows > requests:
            if plain is not None:
                known = self._ratios.get((requests, rows), self._assumed(requests, rows))
                self._ratios[requests, rows] = _mixed(known, seconds / plain)
        elif plain is None:
            self._plain[requests] = seconds
        elif last == (requests, rows):
            self._plain[requests] = _mixed(plain, seconds)
        elif last is not None and last[0] == requests:
            known = 1 + self._after.get(last, 0.0)
            self._after[last] = _mixed(known, seconds / plain) - 1

    def interrupted(self) -> None:
        """Between two steps of answers was one with prompts, which the first may be prepared anew for."""
        self._last = None

    def ratio(self, requests: int, rows: int) -> float:
        key = requests, rows
        return self._ratios.get(key, self._assumed(requests, rows)) + self._after.get(key, 0.0)

    def tokens(self, requests: int, rows: int) -> float:
        """Return how many tokens plain steps would give in the time that candidates take."""
        return (self.ratio(requests, rows) - 1) * requests**SAVING_EXPONENT if rows > requests else 0.0

    def best(self, requests: int, rate: float, most: int) -> int:
        """Return how many candidates of one request pay most among `requests`, each right with `rate`."""
        self._decay(requests)
        best, gain = 0, MIN_GAIN
        right = extra = 0.0
        for count in range(1, most + 1):
            right = rate if count == 1 else right * rate
            extra += right
            found = (1 + extra / requests**SAVING_EXPONENT) / self.ratio(requests, requests + count)
            if found > gain:
                best, gain = count, found
        return best

    def _decay(self, requests: int) -> None:
        """Bring what is known nearer to what is assumed, so that what was slow once is tried again."""
        for (others, rows), ratio in self._ratios.items():
            if others == requests:
                self._ratios[others, rows] = ratio + RATIO_DECAY * (self._assumed(others, rows) - ratio)

    def _assumed(self, requests: int, rows: int) -> float:
        change = SINGLE_FORM_COST if requests == 1 and not self._curve else CHANGED_FORM_COST
        most = 1 + change + EXTRA_ROW_COST * (rows - requests) / math.sqrt(requests)
        if not self._curve:
            return most
        plain, more = np.interp([requests, rows], [*self._curve], [*self._curve.values()])
        return max(1.0, min(float(more / plain), most))  # the machine may have been busy


def _mixed(old: float, new: float) -> float:
    return old + COST_EWMA_WEIGHT * (min(new, MAX_OUTLIER_RATIO * old) - old)
