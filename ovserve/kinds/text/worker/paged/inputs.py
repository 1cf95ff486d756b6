"""The inputs of a step. While the same requests decode, only values change, and the runtime reads them in
place."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np

from ovserve.kinds.text.worker.paged.model import Floats, Ints, Runner
from ovserve.kinds.text.worker.paged.running import ScheduledSequence


class StepTokens(NamedTuple):
    """The tokens of a sequence that a step computes."""

    ids: array[int]
    start: int  # tokens of the sequence before them
    rows: int  # of the last ones of them the logits are needed
    block_table: array[int]


class Bound(NamedTuple):
    """The arrays that the runtime reads."""

    ids: Ints
    positions: Ints
    past: Ints


class Inputs:
    def __init__(self, runner: Runner, *, splits: bool = False) -> None:
        """`splits`: the form takes one token of each sequence, so draft tokens are sequences of their own."""
        self._runner = runner
        self._splits = splits
        self._bound: Bound | None = None
        self._decoding: list[int] = []  # who was in the last step, if each had one token
        self._version = -1

    def run(self, scheduled: list[ScheduledSequence], version: int) -> Floats:
        """Compute a step and return its logits [rows, vocabulary]: those of the first turn come first.

        `version` changes whenever a request gets or loses blocks."""
        decoding = (
            [item.running.id for item in scheduled]
            if all(item.tokens == 1 == item.rows for item in scheduled)
            else []
        )
        if decoding and decoding == self._decoding and self._bound is not None:
            if version != self._version:
                bind_blocks(self._runner, [item.sequence.block_table for item in scheduled])
            self._bound.ids[:] = [item.sequence.ids[-1] for item in scheduled]
            past = [item.sequence.num_computed_tokens for item in scheduled]
            self._bound.positions[:] = self._bound.past[:] = past
        else:
            parts = map(_tokens_of, scheduled)
            self._bound = bind_tokens(
                self._runner, chain.from_iterable(map(_split, parts)) if self._splits else parts
            )
        self._decoding, self._version = decoding, version
        return self._runner.run(max(item.sequence.num_computed_tokens + item.tokens for item in scheduled))


def _tokens_of(item: ScheduledSequence) -> StepTokens:
    sequence, start = item.sequence, item.sequence.num_computed_tokens
    ids = sequence.ids[start : start + item.tokens]
    ids.extend(item.drafted)
    return StepTokens(ids, start, item.rows, sequence.block_table)


def _split(part: StepTokens) -> Iterator[StepTokens]:
    """A token's keys are in the cache before any attention of the step is computed."""
    for at in range(len(part.ids)):
        yield StepTokens(part.ids[at : at + 1], part.start + at, 1, part.block_table)


def bind_tokens(runner: Runner, parts: Iterable[StepTokens]) -> Bound:
    parts = list(parts)
    ends = _sums([len(part.ids) for part in parts])
    bound = Bound(
        np.frombuffer(bytearray().join(part.ids for part in parts), np.int64),
        np.concatenate([np.arange(part.start, part.start + len(part.ids)) for part in parts]),
        np.array([part.start for part in parts], np.int32),
    )
    rows = [
        np.arange(end - part.rows, end, dtype=np.int32)
        for part, end in zip(parts, ends[1:].tolist(), strict=True)
        if part.rows
    ]
    runner.bind("input_ids", bound.ids)
    runner.bind("position_ids", bound.positions)
    runner.bind("past_lens", bound.past)
    runner.bind("subsequence_begins", ends)
    # Without any the layer is computed for one, because not every kernel takes none.
    runner.bind("rows", np.concatenate(rows) if rows else np.zeros(1, np.int32))
    bind_blocks(runner, [part.block_table for part in parts])
    return bound


def bind_blocks(runner: Runner, tables: list[array[int]]) -> None:
    runner.bind("block_indices", np.frombuffer(bytearray().join(tables), np.int32))
    runner.bind("block_indices_begins", _sums([len(table) for table in tables]))


def _sums(counts: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Return zero, then the sum of each beginning of `counts`."""
    return np.array([0, *accumulate(counts)], np.int32)
