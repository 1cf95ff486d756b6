"""Group beam search, with the rules of OpenVINO GenAI's `GroupBeamSearcher` (held against it in
tests/engine/paged/test_beams.py).

A request with `best_of` B and G groups keeps B / G beams per group. In a step each beam proposes its 2 B / G
likeliest tokens. The best of a group's candidates become its beams. Those that end among the first B / G
become hypotheses, of which a group keeps the B / G best by `score / length ** length_penalty`. A group is
done when its worst hypothesis is at least as good as its best beam would be if it ended now.

It differs in three ways. `min_tokens` and `ignore_eos` apply, and a stop string ends a hypothesis with the
token that completes it. The log-probabilities of tokens are those of the model, without the diversity
penalty.

Nothing here touches the KV cache: `Scheduler.fork` gives the chosen candidates their block tables.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import numpy as np

from ovserve.kinds.text.worker.paged.blocks import TokenSequence
from ovserve.kinds.text.worker.paged.masks import FORBIDDEN
from ovserve.kinds.text.worker.paged.runner import Floats
from ovserve.kinds.text.worker.paged.sampler import Choice, Row, Scored, best_ids
from ovserve.llm.request import Sampling

# Returns for each answer, by its ids, whether its last token completes a stop string.
CompletesStop = Callable[[list["array[int]"]], list[bool]]


class Beam(TokenSequence):
    """One continuation of a prompt that is still being searched."""

    def __init__(self, ids: array[int], score: float = 0.0, scored: Iterable[Scored] = ()) -> None:
        super().__init__(ids)
        self.score = score  # the sum of its log-probabilities
        self.scored = tuple(scored)


class Hypothesis(NamedTuple):
    """A finished continuation."""

    ids: array[int]
    scored: tuple[Scored, ...]
    score: float  # normalized by its length
    finish: str


class Group:
    def __init__(self, root: Beam) -> None:
        self.beams = [root]  # the best one first
        self.finished: list[Hypothesis] = []
        self.done = False


class Candidate(NamedTuple):
    """A beam with one more token."""

    group: Group
    parent: Beam
    token: int
    score: float
    scored: tuple[Scored, ...] = ()  # of all its tokens, if the request wants log-probabilities

    @property
    def ids(self) -> array[int]:
        return self.parent.ids + array("q", [self.token])


class BeamSearch:
    def __init__(
        self,
        sampling: Sampling,
        prompt: int,
        choice: Choice,
        stop_ids: Collection[int],
        completes_stop: CompletesStop | None,
    ) -> None:
        """`prompt`: its tokens. `completes_stop`: None without stop strings."""
        self._sampling, self._prompt = sampling, prompt
        self._choice, self._stop_ids, self._completes_stop = choice, stop_ids, completes_stop
        self._size = sampling.beams // sampling.beam_groups
        self._groups: list[Group] = []

    def start(self, root: Beam) -> None:
        """Begin, or begin again, at a prompt that is computed."""
        self._groups = [Group(root) for _ in range(self._sampling.beam_groups)]

    def advance(self, beams: list[Beam], logits: Floats) -> list[Candidate]:
        """Return the next beams of all groups, given the logits of the current ones. Without any it is done.

        Their `group.beams` are to be filled by the caller, in this order."""
        self._choice.generated = len(beams[0].ids) - self._prompt
        rows = dict(zip(beams, self._log_probabilities(logits), strict=True))
        raw = dict(zip(beams, logits, strict=True))
        candidates: list[Candidate] = []
        for group in self._groups:
            if not group.done:
                candidates += self._advance(group, rows, raw, [candidate.token for candidate in candidates])
                group.beams = []
        # A group that has just ended counted for the diversity of the others.
        return [candidate for candidate in candidates if not candidate.group.done]

    def finish(self) -> list[Hypothesis]:
        """End what is still being searched; return the hypotheses, the best one first."""
        for group in self._groups:
            for beam in group.beams:
                self._add(group, beam.ids, beam.scored, beam.score, "length")
            group.beams, group.done = [], True
        hypotheses = [hypothesis for group in self._groups for hypothesis in group.finished]
        return sorted(hypotheses, key=lambda hypothesis: hypothesis.score, reverse=True)

    def _log_probabilities(self, logits: Floats) -> Floats:
        if self._choice.changes_rows:
            logits = logits.copy()
            for row in logits:
                self._choice.change(row)
        peaks = logits.max(1, keepdims=True)
        shifted: Floats = logits - peaks
        shifted -= np.log(np.exp(shifted).sum(1, keepdims=True))
        return shifted

    def _advance(
        self, group: Group, rows: dict[Beam, Row], raw: dict[Beam, Row], tokens: list[int]
    ) -> list[Candidate]:
        """`tokens` are those that earlier groups have just chosen."""
        candidates = [each for beam in group.beams for each in self._propose(group, beam, rows[beam], tokens)]
        candidates.sort(key=lambda candidate: candidate.score, reverse=True)
        best, length = group.beams[0].score, len(group.beams[0].ids) - self._prompt
        survivors: list[Candidate] = []
        for rank, (candidate, ends) in enumerate(self._with_ends(candidates)):
            if not ends:
                survivors.append(self._with_scored(candidate, raw))
                if len(survivors) == self._size:
                    break
            elif rank < self._size:
                self._add(
                    group, candidate.ids, self._with_scored(candidate, raw).scored, candidate.score, "stop"
                )
        group.done = not survivors or self._is_done(group, best, length)
        return survivors

    def _propose(self, group: Group, beam: Beam, row: Row, tokens: list[int]) -> Iterable[Candidate]:
        if tokens and self._sampling.diversity_penalty:
            row = row.copy()
            np.subtract.at(row, tokens, np.float32(self._sampling.diversity_penalty))
        for token in best_ids(row, float(row.max()), min(2 * self._size, len(row))).tolist():
            if row[token] != FORBIDDEN:
                yield Candidate(group, beam, token, beam.score + float(row[token]))

    def _with_scored(self, candidate: Candidate, raw: dict[Beam, Row]) -> Candidate:
        if not self._sampling.logprobs:
            return candidate
        last = self._choice.score(raw[candidate.parent], candidate.token)
        return candidate._replace(scored=(*candidate.parent.scored, last))

    def _with_ends(self, candidates: list[Candidate]) -> Iterable[tuple[Candidate, bool]]:
        """Yield each candidate, and whether it ends there. Few are asked for, as a rule."""
        for at in range(0, len(candidates), 2 * self._size):
            some = candidates[at : at + 2 * self._size]
            stops = [False] * len(some)
            if self._completes_stop is not None:
                stops = self._completes_stop([candidate.ids[self._prompt :] for candidate in some])
            for candidate, stop in zip(some, stops, strict=True):
                yield candidate, stop or candidate.token in self._stop_ids

    def _is_done(self, group: Group, best: float, length: int) -> bool:
        if len(group.finished) < self._size:
            return False
        return min(each.score for each in group.finished) >= self._normalized(best, length)

    def _add(
        self, group: Group, ids: array[int], scored: tuple[Scored, ...], score: float, finish: str
    ) -> None:
        ids = ids[self._prompt :]
        group.finished.append(Hypothesis(ids, scored, self._normalized(score, len(ids)), finish))
        if len(group.finished) > self._size:
            group.finished.sort(key=lambda hypothesis: hypothesis.score, reverse=True)
            group.finished.pop()

    def _normalized(self, score: float, length: int) -> float:
        with np.errstate(all="ignore"):  # a penalty of 1000 leaves the range of numbers
            return float(np.float64(score) / np.float64(length) ** self._sampling.length_penalty)
