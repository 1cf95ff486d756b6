"""N-gram drafting: propose the tokens that followed the last n-gram, if that saves time.

Of several places with the same n-gram, the one that the answer has been following comes first, since edited
text goes on there after a change; then the latest place of a longer n-gram before that of a shorter one.

Drafts are first evaluated in shadow: they are compared with what followed, without being computed. A request
has drafts in its steps while those of its last tokens would have saved time. The next ones must also promise
MIN_SPEEDUP.

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
FOLLOWED_PLACE = 4  # instead of a size: the last two tokens stand where the answer has been following
# Of acceptance, per token, before anything is known.
FIRST_RATES = {FOLLOWED_PLACE: 0.7, 3: 0.5, 2: 0.25, FORCED_TEXT: 0.8}
RATE_EWMA_WEIGHT = 0.9  # of what is known, kept at each candidate that is compared
FIRST_RATE_WEIGHT = 2.0  # tokens, as many as the first rates count
MAX_DRAFTED_STREAMS = 4
MAX_DRAFT_TOKENS = 8  # candidates of a request
MIN_SPEEDUP = 1.1  # at least: rates change, and steps are measured wrong
RATIO_DECAY = 0.005  # of what steps with candidates took, at each decision
SINGLE_FORM_COST = 1.0  # of a plain step of one request: one with candidates leaves the form
CHANGED_FORM_COST = 0.4  # for one token, and for others, before it is measured
EXTRA_ROW_COST = 0.08  # the same, of another row: less for more requests
# What a token of one request saves is less than its part of a step, because steps go on for the others.
SAVING_EXPONENT = 1.1  # exponent of the number of requests
COST_EWMA_WEIGHT = 0.3  # the part of what is measured in what is known
MAX_OUTLIER_RATIO = 2.0  # times what is known, the most that a step counts: other work may have held it up
INITIAL_GAIN_TOKENS = -3.0  # tokens: so many must be saved in shadow before a draft is computed
MAX_GAIN_TOKENS = 4.0  # tokens at most that count as saved or lost: what was long ago says little


class ShadowDraft(NamedTuple):
    """Candidates that are in no step."""

    at: int  # of the first of them, among the tokens of the request
    tokens: tuple[int, ...]
    costs: float | None  # None: they would not be in a step, but are compared
    size: int


class StepDrafts:
    """The drafted tokens of one request that were verified in the step at hand."""

    _drafted = 0

    def count_step(self, ids: list[int], num_tokens: int) -> tuple[int, int]:
        """Return drafted and accepted tokens of a step of which `num_tokens` ids belong to the answer."""
        drafted, self._drafted = self._drafted, 0
        return drafted, min(num_tokens, len(ids) - 1) if drafted else 0


class NgramDrafter(StepDrafts):
    """Proposes drafts for one request from its own prompt and answer."""

    def __init__(self, ids: array[int], most: int) -> None:
        """`ids` are appended to by the caller. `most`: draft tokens that this request allows."""
        self._ids = ids
        self._most = min(most, MAX_DRAFT_TOKENS)
        self._followed: dict[tuple[int, ...], int] = {}  # where the token after a run is, the last time
        self._indexed = 0
        self._distance = 0  # from the end back to the place that the answer follows; 0: none
        self._accepted = {size: rate * FIRST_RATE_WEIGHT for size, rate in FIRST_RATES.items()}
        self._proposed = dict.fromkeys(FIRST_RATES, FIRST_RATE_WEIGHT)
        self._size = FORCED_TEXT  # of the last n-gram that matched
        self._gain = INITIAL_GAIN_TOKENS  # tokens saved, by verified drafts and by shadow drafts
        self._shadow: ShadowDraft | None = None

    def propose(self) -> tuple[tuple[int, ...], float]:
        """Return draft tokens, and their estimated acceptance rate per token."""
        ids, followed = self._ids, self._followed
        for at in range(max(self._indexed, NGRAM_SIZES[0]), len(ids)):
            for size in NGRAM_SIZES:
                followed[tuple(ids[at - size : at])] = at
        self._indexed = len(ids)
        end, distance = len(ids), self._distance
        if distance and ids[end - 2 - distance : end - distance] == ids[-2:]:
            return self._match(end - distance, FOLLOWED_PLACE)
        for size in NGRAM_SIZES:
            if latest := followed.get(tuple(ids[-size:])):
                self._distance = end - latest
                return self._match(latest, size)
        return (), 0.0

    def _match(self, at: int, size: int) -> tuple[tuple[int, ...], float]:
        self._size = size
        return tuple(self._ids[at : at + self._most]), self._accepted[size] / self._proposed[size]

    def propose_forced(self, tokens: Iterable[int]) -> tuple[tuple[int, ...], float]:
        """Return the tokens of a text that must follow as a draft: the model may tokenize it differently."""
        self._size = FORCED_TEXT
        return tuple(islice(tokens, self._most)), self._accepted[FORCED_TEXT] / self._proposed[FORCED_TEXT]

    def select(self, draft: tuple[int, ...], count: int, costs: float) -> tuple[int, ...]:
        """Return the first `count` tokens of the draft, or none if it is only a shadow draft.

        `costs`: tokens that plain steps would have given in the time that these take."""
        self._compare()
        forced = self._size == FORCED_TEXT  # almost always accepted
        pays = self._gain > 0 or (forced and self._gain >= INITIAL_GAIN_TOKENS)
        if count and pays and (self._shadow is None or forced):
            self._shadow = None
            return draft[:count]
        if self._shadow is None:
            shadow = draft[: max(count, 1)]
            self._shadow = ShadowDraft(len(self._ids), shadow, costs if count else None, self._size)
        return ()

    def record_verified(self, drafted: int, accepted: int, costs: float) -> None:
        self._update_rate(self._size, drafted, accepted)
        self._add_gain(accepted - costs)
        self._drafted += drafted

    def _compare(self) -> None:
        """Evaluate the shadow draft, if what followed is known."""
        if (shadow := self._shadow) is None:
            return
        followed = self._ids[shadow.at : shadow.at + len(shadow.tokens)]
        right = 0
        while right < len(followed) and followed[right] == shadow.tokens[right]:
            right += 1
        if right == len(followed) < len(shadow.tokens):
            return
        self._update_rate(shadow.size, len(shadow.tokens), right)
        if shadow.costs is not None:
            self._add_gain(right - shadow.costs)
        self._shadow = None

    def _update_rate(self, size: int, drafted: int, right: int) -> None:
        self._accepted[size] = RATE_EWMA_WEIGHT * self._accepted[size] + right
        self._proposed[size] = RATE_EWMA_WEIGHT * self._proposed[size] + right + (right < drafted)

    def _add_gain(self, tokens: float) -> None:
        self._gain = max(-MAX_GAIN_TOKENS, min(self._gain + tokens, MAX_GAIN_TOKENS))


class ModelDrafts(StepDrafts):
    """Counts what a draft model proposes for one request."""

    def __init__(self, most: int) -> None:
        """`most`: candidates in a step."""
        self.most = most

    def record_verified(self, drafted: int) -> None:
        self._drafted += drafted


class StepCosts:
    """The duration of steps with more rows, relative to plain ones of the same requests."""

    def __init__(self, measured: Mapping[int, float] | None = None) -> None:
        """`measured`: seconds of steps of so many rows of one request, if no form of one row is faster."""
        self._curve = dict(measured or {})
        self._plain: dict[int, float] = {}  # seconds, by rows
        self._ratios: dict[tuple[int, int], float] = {}  # by requests and rows
        self._after: dict[tuple[int, int], float] = {}  # how much longer the plain step after it takes
        self._last: tuple[int, int] | None = None

    def record_step(self, requests: int, rows: int, seconds: float) -> None:
        """Record a step without prefill."""
        if requests > MAX_DRAFTED_STREAMS:
            self._last = None
            return
        last, self._last = self._last, (requests, rows)
        plain = self._plain.get(requests)
        if rows > requests:
            if plain is not None:
                ratio = self._ratios.get((requests, rows), self._assumed(requests, rows))
                self._ratios[requests, rows] = _mixed(ratio, seconds / plain)
        elif plain is None:
            self._plain[requests] = seconds
        elif last == (requests, rows):
            self._plain[requests] = _mixed(plain, seconds)
        elif last is not None and last[0] == requests:
            ratio = 1 + self._after.get(last, 0.0)
            self._after[last] = _mixed(ratio, seconds / plain) - 1

    def record_prefill(self) -> None:
        """Record that a step with prefill followed, after which the next one may be prepared anew."""
        self._last = None

    def ratio(self, requests: int, rows: int) -> float:
        key = requests, rows
        return self._ratios.get(key, self._assumed(requests, rows)) + self._after.get(key, 0.0)

    def tokens(self, requests: int, rows: int) -> float:
        """Return how many tokens plain steps would give in the time that candidates take."""
        return (self.ratio(requests, rows) - 1) * requests**SAVING_EXPONENT if rows > requests else 0.0

    def best_count(self, requests: int, rate: float, most: int) -> int:
        """Return how many candidates of one request pay most among `requests`, each right with `rate`."""
        self._decay(requests)
        best, gain = 0, MIN_SPEEDUP
        right = extra = 0.0
        for count in range(1, most + 1):
            right = rate if count == 1 else right * rate
            extra += right
            speedup = (1 + extra / requests**SAVING_EXPONENT) / self.ratio(requests, requests + count)
            if speedup > gain:
                best, gain = count, speedup
        return best

    def _decay(self, requests: int) -> None:
        """Move measured ratios towards the assumed ones, so that what was slow once is tried again."""
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
