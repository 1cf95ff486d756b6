"""Find the fastest options: a coordinate search in which each candidate meets the best so far (the baseline).

A candidate and the baseline run round after round on the same prompts, alternating which runs first.
Only the ratio within such a pair counts, because a machine that is busy for a minute slows both. Losers leave
after two pairs. Before anything else the current graph runs against itself; its difference from 1
is the noise that a gain must exceed. At the end the winner meets the current graph once more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, Protocol

import msgspec

from ovserve.engine.protocol.specs import TextSpec
from ovserve.errors import OvserveError
from ovserve.tools.tuning.graph_file import Choices, Options, applied, label
from ovserve.tools.tuning.prompts import Round, ratio

_MAX_SHOWN = 24  # characters of each answer after the first difference


class Difference(msgspec.Struct, frozen=True):
    """The difference of answers: `answers` of `compared` do. The rest describes the first one that differs:
    the number of equal characters, and how each continues.
    """

    answers: int
    compared: int
    position: int
    was: str
    now: str

    def __str__(self) -> str:
        return (
            f"{self.answers} of {self.compared} answers differ, first at character {self.position}: "
            f"{self.was!r} became {self.now!r}"
        )


def difference(was: Sequence[str], now: Sequence[str]) -> Difference | None:
    parted = [(_common(a, b), a, b) for a, b in zip(was, now, strict=True) if a != b]
    if not parted:
        return None
    at, a, b = min(parted)
    return Difference(len(parted), len(was), at, a[at : at + _MAX_SHOWN], b[at : at + _MAX_SHOWN])


def _common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


LEAST_PAIRS, MOST_PAIRS = 2, 5
PAIRS_TO_TELL = 3  # for a candidate that cannot win, so that the operator knows its gain
CONTROL_PAIRS = 3
MOST_ON_CONTROL = 0.3  # of the budget; a slow model's noise is known less well
FINAL_PAIRS = 5
HOPELESS_RATIO = 0.95  # a median below it ends a match early
LEAST_GAIN, MOST_NOISE = 0.02, 0.10

Outcome = Literal["taken", "slower", "no gain", "other text", "failed", "no time"]


class Turns(Protocol):
    """The part of `arena.Benchmark` that the search needs."""

    load_seconds: float

    async def engine(self, spec: TextSpec) -> object: ...
    async def pair(self, first: TextSpec, second: TextSpec) -> tuple[Round, Round]: ...
    async def texts(self, spec: TextSpec) -> list[str]: ...
    async def drop(self, spec: TextSpec) -> None: ...


@dataclass
class Comparison:
    """Pairs of rounds: the baseline's, the candidate's."""

    pairs: list[tuple[Round, Round]] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [ratio(candidate, baseline) for baseline, candidate in self.pairs]

    def at(self, streams: int) -> float:
        """Return the median ratio at one number of streams."""
        speeds = [(a[streams].tokens_per_second, b[streams].tokens_per_second) for a, b in self.pairs]
        return median(candidate / baseline for baseline, candidate in speeds)

    @property
    def median(self) -> float:
        return median(self.ratios)


@dataclass
class Trial:
    """One candidate: the baseline's options at the time with a choice in their place.

    `message` is the library's message on a failure.
    """

    choice: Options
    baseline: Options
    match: Comparison = field(default_factory=Comparison)
    outcome: Outcome = "no time"
    message: str = ""
    difference: Difference | None = None


@dataclass
class TuneResult:
    """The result. `options` are the winner's, none if the graph is best as it is; `final` compares it with
    the graph."""

    options: Options
    control: Comparison
    trials: list[Trial]
    final: Comparison | None
    difference: Difference | None  # the difference in the winner's answers
    deterministic: bool  # the graph repeated its own answers
    seconds: float

    @property
    def noise(self) -> float:
        return noise(self.control)


Progress = Callable[[float, str], None]  # the elapsed part of the time, 0 to 1, and the current step


def noise(control: Comparison) -> float:
    """Return by how much a ratio must differ from 1 to be significant."""
    if len(control.pairs) < LEAST_PAIRS:
        return MOST_NOISE
    worst = max(abs(one - 1) for one in control.ratios)
    return min(MOST_NOISE, max(LEAST_GAIN, worst))


@dataclass
class Search:
    """A search. `seconds` is the budget, counted from `began` (`time.monotonic()`).

    With `other_text` a winner may change greedy answers.
    """

    turns: Turns
    spec: TextSpec
    began: float = field(kw_only=True)
    seconds: float = field(kw_only=True)
    other_text: bool = field(kw_only=True)
    progress: Progress = field(kw_only=True)

    def __post_init__(self) -> None:
        self._options: Options = {}
        self._own_texts: list[str] = []
        self._noise = MOST_NOISE
        self._pair_seconds = 0.0
        self._trials: list[Trial] = []

    async def run(self, dimensions: Mapping[str, Choices]) -> TuneResult:
        """Search. Raises what the graph's own engine raises; a candidate's failure is a result."""
        self._say("the graph as it is")
        self._own_texts = await self.turns.texts(self.spec)
        deterministic = await self.turns.texts(self.spec) == self._own_texts
        control = Comparison()
        while len(control.pairs) < CONTROL_PAIRS and self._gone() < MOST_ON_CONTROL:
            most = len(control.pairs) + 1
            await self._play(control, self.spec, self.spec, most, "the graph against itself")
        self._noise = noise(control)
        await self._passes(dimensions)
        final, parted = None, None
        if self._options:
            winner, final = applied(self.spec, self._options), Comparison()
            parted = difference(self._own_texts, await self.turns.texts(winner))
            await self._play(final, self.spec, winner, FINAL_PAIRS, "the winner against the graph as it was")
            if final.median <= 1 + self._noise / 2:  # single gains that add up to none
                self._options = {}
        seconds = time.monotonic() - self.began
        return TuneResult(self._options, control, self._trials, final, parted, deterministic, seconds)

    async def _passes(self, dimensions: Mapping[str, Choices]) -> None:
        """Try all choices once; then again those that lost by little to a baseline that was replaced
        since."""
        trials = [await self._try(choice) for choices in dimensions.values() for choice in choices]
        for trial in trials:
            # An option that is set already is in use, or lost to what is.
            is_new = trial.baseline != self._options and not trial.choice.keys() & self._options.keys()
            if trial.outcome == "no gain" and is_new:
                await self._try(trial.choice)

    async def _try(self, choice: Options) -> Trial:
        trial = Trial(choice, self._options)
        self._trials.append(trial)
        if self._time_left() < LEAST_PAIRS * self._pair_seconds + self.turns.load_seconds:
            return trial
        baseline = applied(self.spec, self._options)
        candidate, name = applied(self.spec, {**self._options, **choice}), label(choice)
        self._say(f"{name}: loading")
        try:
            await self.turns.engine(candidate)
            self._say(f"{name}: comparing texts")
            trial.difference = difference(self._own_texts, await self.turns.texts(candidate))
            most = MOST_PAIRS if self._objection(trial) is None else PAIRS_TO_TELL
            await self._play(trial.match, baseline, candidate, most, name, settle=True)
        except OvserveError as error:
            trial.outcome, trial.message = "failed", error.message
            await self.turns.drop(candidate)
            return trial
        trial.outcome = self._judged(trial)
        if trial.outcome == "taken":
            self._options = {**self._options, **choice}
        await self.turns.drop(baseline if trial.outcome == "taken" else candidate)
        return trial

    def _judged(self, trial: Trial) -> Outcome:
        ordered = sorted(trial.match.ratios)
        if not ordered:
            return "no time"
        if trial.match.median < 1 - self._noise:
            return "slower"
        if trial.match.median <= 1 + self._noise or (len(ordered) > LEAST_PAIRS and ordered[1] <= 1):
            return "no gain"
        return self._objection(trial) or "taken"

    def _objection(self, trial: Trial) -> Outcome | None:
        """Return why it cannot win, however fast it is."""
        return "other text" if trial.difference is not None and not self.other_text else None

    async def _play(
        self,
        match: Comparison,
        baseline: TextSpec,
        candidate: TextSpec,
        most: int,
        name: str,
        *,
        settle: bool = False,
    ) -> None:
        """Run `most` pairs; with `settle` fewer if the result is clear or the time is up.

        It runs only the least number when the whole budget is used up: a machine that became slower costs
        pairs, not time.
        """
        while len(match.pairs) < most and not (len(match.pairs) >= LEAST_PAIRS and self._gone() >= 1):
            began = time.monotonic()
            if len(match.pairs) % 2 == 0:
                of_holder, of_challenger = await self.turns.pair(baseline, candidate)
            else:
                of_challenger, of_holder = await self.turns.pair(candidate, baseline)
            match.pairs.append((of_holder, of_challenger))
            self._pair_seconds = time.monotonic() - began
            self._say(f"{name}: {match.median:.2f}")
            if settle and self._settled(match):
                return

    def _settled(self, match: Comparison) -> bool:
        if len(match.pairs) < LEAST_PAIRS:
            return False
        if match.median < HOPELESS_RATIO or self._time_left() < self._pair_seconds:
            return True
        # After three pairs without a sufficient gain, two more cannot turn the median.
        return len(match.pairs) > LEAST_PAIRS and max(match.ratios) <= 1 + self._noise

    def _time_left(self) -> float:
        """Return the rest of the budget, without the time for the last match."""
        reserve = FINAL_PAIRS * self._pair_seconds + self.turns.load_seconds
        return self.began + self.seconds - time.monotonic() - reserve

    def _gone(self) -> float:
        """Return the used part of the budget, 0 to 1."""
        return (time.monotonic() - self.began) / self.seconds

    def _say(self, text: str) -> None:
        self.progress(min(1.0, self._gone()), text)
