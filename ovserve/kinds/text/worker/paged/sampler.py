"""Chooses tokens from logits, one row at a time.

Log-probabilities are those of the model, before anything else changes the row. Then, in this order: biases,
penalties, DRY, the grammar's mask, the minimum length, and with a temperature top_k, top_p, min_p and XTC.

A vocabulary has 50,000 to 250,000 tokens, of which few matter. So a row is searched once for its maximum (6
us for 50,000) and once for what is near it (20 us); the rest works on what was found.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ovserve.kinds.text.worker.paged.masks import FORBIDDEN, Logits, Matcher, restrict
from ovserve.kinds.text.worker.paged.reasoning import ReasoningLimit
from ovserve.llm.request import GREEDY_TEMPERATURE, Dry, Sampling

# DRY ("don't repeat yourself"): a penalty for tokens that would go on with a repetition, by its length.
#
# For each place of the window, `matches` has how many tokens before it, with itself, are also the last ones
# of the text. With a new token these numbers move one place on, or become 0. So a token costs one pass over
# the window, however long the repetitions are.


MAX_PENALTY = 1e4  # as good as a ban, and more than what a grammar forbids
# Tokens at the end of a prompt in which repetitions are looked for at first: more would cost up to the square
# of its length. A repetition of so many tokens has MAX_PENALTY with any base above 1.02.
MAX_PROMPT_MATCH = 512


class DryPenalty:
    """The repetitions of one request's text."""

    def __init__(self, dry: Dry, prompt: Iterable[int], bytes_of: Callable[[int], bytes]) -> None:
        """`bytes_of`: the text of a token."""
        self._dry, self._bytes_of = dry, bytes_of
        self._breakers = tuple(text.encode() for text in dry.sequence_breakers)
        self._longest = max(map(len, self._breakers), default=0)
        self._breaking: dict[int, bool] = {}  # tokens that have a breaker
        self._tail = b""  # the end of the text, as long as a breaker at most
        self._unbroken = 0  # tokens after the last breaker: a match is no longer than these
        ids = np.fromiter(prompt, np.int64)
        if dry.penalty_last_n >= 0:
            ids = ids[max(len(ids) - dry.penalty_last_n, 0) :]
        for token in ids[-MAX_PROMPT_MATCH:].tolist():
            self._note_breaker(token)
        self._size = len(ids)
        self._ids = np.zeros(2 * len(ids) + 64, np.int64)
        self._ids[: len(ids)] = ids
        self._matches = np.zeros_like(self._ids)
        for end in range(len(ids) - self._unbroken, len(ids)):
            self._match(end)

    def append(self, token: int) -> None:
        if self._size == len(self._ids):
            self._ids = np.append(self._ids, np.zeros_like(self._ids))
            self._matches = np.append(self._matches, np.zeros_like(self._matches))
        self._ids[self._size] = token
        self._match(self._size)
        self._size += 1
        self._note_breaker(token)

    def change(self, row: Logits) -> None:
        dry, start, last = self._dry, self._start(self._size), self._size - 1
        if last - start < dry.allowed_length:
            return
        lengths = np.minimum(self._matches[start:last], np.arange(1, last - start + 1))
        np.minimum(lengths, self._unbroken, out=lengths)
        places = np.flatnonzero(lengths >= dry.allowed_length)
        # A loop over the places took 3 ms for a prompt of 8,000 equal tokens, for each of 64 choices.
        tokens, token_of_place = np.unique(self._ids[places + start + 1], return_inverse=True)
        longest = np.zeros(len(tokens), np.int64)
        np.maximum.at(longest, token_of_place, lengths[places])
        for token, length in zip(tokens.tolist(), longest.tolist(), strict=True):
            if not self._breaks(token):
                row[token] -= self._penalty(length - dry.allowed_length)

    def _start(self, end: int) -> int:
        last_n = self._dry.penalty_last_n
        return 0 if last_n < 0 else max(end - last_n, 0)

    def _match(self, end: int) -> None:
        """Move on to the text whose last token is at `end`."""
        start = self._start(end + 1)
        same = self._ids[start:end] == self._ids[end]
        before = self._matches[max(start - 1, 0) : end - 1] if end else self._matches[:0]
        moved = same.astype(np.int64)
        moved[len(moved) - len(before) :] += before
        self._matches[start:end] = np.where(same, moved, 0)

    def _penalty(self, excess: int) -> float:
        base, multiplier = self._dry.base, self._dry.multiplier
        if base > 1 and excess * math.log(base) > math.log(MAX_PENALTY / multiplier):
            return MAX_PENALTY
        return min(multiplier * base**excess, MAX_PENALTY)

    def _note_breaker(self, token: int) -> None:
        self._unbroken += 1
        if not self._breakers:
            return
        text = self._tail + self._bytes_of(token)
        if any(breaker in text for breaker in self._breakers):
            self._unbroken, text = 0, b""
        self._tail = text[len(text) - min(len(text), self._longest - 1) :]

    def _breaks(self, token: int) -> bool:
        if token not in self._breaking:
            text = self._bytes_of(token)
            self._breaking[token] = any(breaker in text for breaker in self._breakers)
        return self._breaking[token]


Row = NDArray[np.float32]
Places = NDArray[np.int64]
# Tokens by this much, in units of the temperature, below the best are left out: 250,000 of them together have
# a probability of at most 250,000 * exp(-25) = 0.000004.
FAR_LOGITS = 25.0
MAX_SORTED_TOKENS = 1024  # tokens, which are sorted in 50 us
SHALLOW_LOGITS = 8.0  # logits; deeper than this below the best there are thousands of tokens
LIKELY_RATIO = 1e-3  # of the best one's probability
MAX_TRIES = 8  # before the row is sorted; 1,485 took 69 ms
RUN_TOKENS = 256  # tokens whose chances are added up first, to find one of 50,000 in two short searches
FIRST_DEPTH = 4.0  # below the maximum, where the most likely tokens are looked for first
MAX_LOGIT_DEPTH = 1e6  # below it are only tokens that are forbidden


class Scored(NamedTuple):
    """The log-probability of a token, and the most likely ones in its place."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Choice:
    """The choice of one request's tokens."""

    def __init__(
        self,
        sampling: Sampling,
        prompt: Iterable[int],
        stop_ids: Iterable[int],
        matcher: Matcher | None = None,
        limit: ReasoningLimit | None = None,
        dry: DryPenalty | None = None,
    ) -> None:
        """`matcher`: of the grammar that the sampling has a constraint for. `limit`: of its reasoning."""
        self.sampling = sampling
        self.matcher = matcher
        self._limit, self._dry = limit, dry
        self._mask = None if matcher is None else np.empty_like(matcher.stops)
        self._greedy = sampling.temperature == GREEDY_TEMPERATURE or sampling.top_k == 1
        self._random = random.Random(sampling.seed)
        self._scores = sampling.logprobs
        self._bias = None
        if sampling.logit_bias:
            ids, values = zip(*sampling.logit_bias, strict=True)
            self._bias = np.array(ids), np.array(values, np.float32)
        penalised = (
            sampling.repetition_penalty != 1 or sampling.frequency_penalty or sampling.presence_penalty
        )
        self._penalty = Penalty(sampling, prompt) if penalised else None
        self._stop_ids = np.array(sorted(stop_ids), np.int64)
        self.generated = 0  # tokens of the answer so far
        self._minimum = sampling.min_tokens
        others = (self._scores, self._bias, self._penalty, self._minimum, matcher, limit, dry)
        self.plain = self._greedy and sampling.beams == 1 and not any(others)

    def score(self, row: Row, token: int) -> Scored:
        """`row`: not changed yet."""
        peak = row.max()
        total = float(peak + np.log(np.exp(row - peak, dtype=np.float32).sum()))
        return Scored(float(row[token]) - total, self._top(row, float(peak), total))

    def choose(self, row: Row) -> tuple[int, Scored | None]:
        """Return a token, -1 if none is allowed; `row` is changed."""
        raw = row.copy() if self._scores and self.changes_rows else row
        self.change(row)
        forced = None if self._limit is None else self._limit.forced
        token = int(row.argmax()) if forced is None else forced
        if row[token] == FORBIDDEN:
            return -1, None
        if forced is None and not self._greedy:
            token = self._draw(row, float(row[token]))
        return token, self.score(raw, token) if self._scores else None

    def append(self, token: int) -> None:
        """Record that a token is in the answer."""
        self.generated += 1
        if self.matcher is not None:
            self.matcher.accept(token)
        if self._penalty is not None:
            self._penalty.append(token)
        if self._dry is not None:
            self._dry.append(token)
        if self._limit is not None:
            self._limit.append(token)

    @property
    def changes_rows(self) -> bool:
        changes = (self._bias, self._penalty, self._dry, self.matcher)
        return any(change is not None for change in changes) or self.generated < self._minimum

    def change(self, row: Row) -> None:
        """Apply what the request asks for, but the choice."""
        if self._bias is not None:
            row[self._bias[0]] += self._bias[1]
        if self._penalty is not None:
            self._penalty.change(row)
        if self._dry is not None:
            self._dry.change(row)
        if self.matcher is not None and self._mask is not None and self.matcher.fill(self._mask):
            restrict(row, self._mask)
        if self.generated < self._minimum:
            ends = row[self._stop_ids]
            row[self._stop_ids] = FORBIDDEN
            if self.matcher is not None and row.max() == FORBIDDEN:
                row[self._stop_ids] = ends  # the grammar admits nothing but the end

    def _draw(self, row: Row, peak: float) -> int:
        sampling, temperature = self.sampling, self.sampling.temperature
        depth = temperature * (
            FAR_LOGITS if not sampling.min_p else min(FAR_LOGITS, -math.log(sampling.min_p))
        )
        if sampling.top_k is not None:
            ids = best_ids(row, peak, min(sampling.top_k, len(row)))
            ids = ids[row[ids] >= peak - depth]
        elif depth > SHALLOW_LOGITS and not sampling.xtc_probability:
            return self._draw_of_many(row, peak, depth)
        else:
            ids = np.flatnonzero(row >= peak - depth)
        chances = np.exp((row[ids] - peak) / temperature, dtype=np.float32)
        if sampling.top_p < 1:
            best = _nucleus(chances, sampling.top_p * float(chances.sum()))
            ids, chances = ids[best], chances[best]
        if sampling.xtc_probability and self._random.random() < sampling.xtc_probability:
            others = self._without_top_choices(row[ids])
            ids, chances = ids[others], chances[others]
        return int(ids[self._pick(chances)])

    def _without_top_choices(self, logits: Row) -> Places:
        """Return the places of all but the likely tokens, and of the least likely one of these. As in
        llama.cpp a token is likely by its probability among those that are left, without the temperature."""
        chances = np.exp(logits - logits.max(), dtype=np.float32)
        likely = np.flatnonzero(chances >= self.sampling.xtc_threshold * float(chances.sum()))
        if len(likely) < 2:
            return np.arange(len(logits))
        return np.delete(np.arange(len(logits)), np.delete(likely, chances[likely].argmin()))

    def _draw_of_many(self, row: Row, peak: float, depth: float) -> int:
        """Draw where thousands of tokens have some probability, in passes over the row instead of a sort."""
        chances = np.exp((row - np.float32(peak)) * np.float32(1 / self.sampling.temperature))
        if self.sampling.min_p:
            chances[row < peak - depth] = 0
        runs = len(chances) - len(chances) % RUN_TOKENS
        sums = np.append(chances[:runs].reshape(-1, RUN_TOKENS).sum(1), chances[runs:].sum())
        mass = self.sampling.top_p * float(sums.sum())
        if self.sampling.top_p < 1:
            ids = np.flatnonzero(chances >= LIKELY_RATIO)
            if len(ids) <= MAX_SORTED_TOKENS and float(chances[ids].sum()) >= mass:
                best = ids[_nucleus(chances[ids], mass)]
                return int(best[self._pick(chances[best])])
        for _ in range(MAX_TRIES):
            start = RUN_TOKENS * self._pick(sums)
            token = start + self._pick(chances[start : start + RUN_TOKENS])
            if self.sampling.top_p == 1 or _before(chances, token) < mass:
                return token
        # A try succeeds with the probability top_p, so a small one would take a thousand.
        best = _nucleus(chances, mass)
        return int(best[self._pick(chances[best])])

    def _pick(self, chances: Row) -> int:
        """Return a place, at random, in proportion to its chance."""
        sums = chances.cumsum(dtype=np.float64)
        at = int(sums.searchsorted(self._random.random() * sums[-1], "right"))
        return min(at, len(chances) - 1)

    def _top(self, row: Row, peak: float, total: float) -> tuple[tuple[int, float], ...]:
        if not self.sampling.top_logprobs:
            return ()
        best = best_ids(row, peak, min(self.sampling.top_logprobs, len(row)))
        return tuple((int(id_), float(row[id_]) - total) for id_ in best)


class Penalty:
    """Penalties for tokens that are there already. A repetition counts in prompt and answer, the others in
    the answer."""

    def __init__(self, sampling: Sampling, prompt: Iterable[int]) -> None:
        self._repetition = sampling.repetition_penalty
        self._frequency, self._presence = sampling.frequency_penalty, sampling.presence_penalty
        self._seen = _Ids(dict.fromkeys(prompt) if self._repetition != 1 else ())
        self._places: dict[int, int] = {}
        self._counted = _Ids(())
        self._counts = np.zeros(len(self._counted.buffer), np.float32)

    def append(self, token: int) -> None:
        if self._repetition != 1:
            self._seen.add(token)
        if (place := self._places.get(token)) is None:
            place = self._places[token] = self._counted.add(token)
            if place == len(self._counts):
                self._counts = np.append(self._counts, np.zeros_like(self._counts))
        self._counts[place] += 1

    def change(self, row: Row) -> None:
        if self._repetition != 1:
            ids = self._seen.ids
            values = row[ids]
            row[ids] = np.where(values > 0, values / self._repetition, values * self._repetition)
        ids = self._counted.ids
        if len(ids) and (self._frequency or self._presence):
            row[ids] -= self._frequency * self._counts[: len(ids)] + self._presence


class _Ids:
    """Different ids that grow one by one, as an array."""

    def __init__(self, ids: Iterable[int]) -> None:
        self._known = set(ids)
        self._size = len(self._known)
        self.buffer = np.zeros(max(64, 2 * self._size), np.int64)
        self.buffer[: self._size] = list(self._known)

    @property
    def ids(self) -> NDArray[np.int64]:
        return self.buffer[: self._size]

    def add(self, id_: int) -> int:
        """Return its place if it is new, else -1."""
        if id_ in self._known:
            return -1
        self._known.add(id_)
        if self._size == len(self.buffer):
            self.buffer = np.append(self.buffer, np.zeros_like(self.buffer))
        self.buffer[self._size] = id_
        self._size += 1
        return self._size - 1


def best_ids(row: Row, peak: float, count: int) -> Places:
    """Return the ids of the most likely tokens, the best first and of equal ones the lowest id."""
    depth = FIRST_DEPTH
    while len(ids := np.flatnonzero(row >= peak - depth)) < count and depth < MAX_LOGIT_DEPTH:
        depth *= 2
    return ids[np.argsort(-row[ids], kind="stable")[:count]]


def _nucleus(chances: Row, mass: float) -> Places:
    """Return the places of the most likely tokens, as few as have `mass` together."""
    best = np.argsort(-chances, kind="stable")
    sums = chances[best].cumsum(dtype=np.float64)
    return best[: int(sums.searchsorted(mass)) + 1]


def _before(chances: Row, token: int) -> float:
    """Return the chance of all that are before a token if the most likely one is the first."""
    own = chances[token]
    more = float(np.dot(chances, (chances > own).astype(np.float32)))
    return more + float(own) * int((chances[:token] == own).sum())
