"""The inputs of a step. While the same requests decode, only values change, and the runtime reads them in
place."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from ovserve.engine.backends.paged.model import Floats, Runner
from ovserve.engine.backends.paged.running import Turn


class Inputs:
    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._ids = self._positions = np.zeros(0, np.int64)
        self._past = np.zeros(0, np.int32)
        self._decoding: list[int] = []  # who was in the last step, if each had one token
        self._version = -1

    def run(self, turns: list[Turn], version: int) -> Floats:
        """Compute a step and return its logits [rows, vocabulary]: those of the first turn come first.

        `version` changes whenever a request gets or loses blocks."""
        decoding = (
            [turn.running.id for turn in turns]
            if all(turn.tokens == 1 == turn.rows for turn in turns)
            else []
        )
        if decoding and decoding == self._decoding:
            if version != self._version:
                self._bind_blocks(turns)
            past = [turn.running.computed for turn in turns]
            self._ids[:] = [turn.running.ids[-1] for turn in turns]
            self._positions[:] = self._past[:] = past
        else:
            self._bind(turns)
            self._bind_blocks(turns)
        self._decoding, self._version = decoding, version
        return self._runner.run(max(turn.running.computed + turn.tokens for turn in turns))

    def _bind(self, turns: list[Turn]) -> None:
        runner, ids = self._runner, bytearray()
        for running, count, drafted in turns:
            start = running.computed
            ids += running.ids[start : start + count].tobytes()
            if drafted:
                ids += np.array(drafted, np.int64).tobytes()
        counts = [turn.tokens for turn in turns]
        begins = _sums(counts)
        self._ids = np.frombuffer(ids, np.int64)
        self._past = np.array([turn.running.computed for turn in turns], np.int32)
        self._positions = np.concatenate(
            [np.arange(at, at + count) for at, count in zip(self._past.tolist(), counts, strict=True)]
        )
        rows = [
            np.arange(end - turn.rows, end, dtype=np.int32)
            for turn, end in zip(turns, begins[1:].tolist(), strict=True)
            if turn.rows
        ]
        runner.bind("input_ids", self._ids)
        runner.bind("position_ids", self._positions)
        runner.bind("past_lens", self._past)
        runner.bind("subsequence_begins", begins)
        # Without any the layer is computed for one, because not every kernel takes none.
        runner.bind("rows", np.concatenate(rows) if rows else np.zeros(1, np.int32))

    def _bind_blocks(self, turns: list[Turn]) -> None:
        tables = [turn.running.blocks for turn in turns]
        self._runner.bind("block_indices", np.frombuffer(bytearray().join(tables), np.int32))
        self._runner.bind("block_indices_begins", _sums([len(table) for table in tables]))


def _sums(counts: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Return zero, then the sum of each beginning of `counts`."""
    return np.array([0, *accumulate(counts)], np.int32)
