"""A compiled model with paged attention, and the arrays that are its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import openvino
from numpy.typing import NDArray

from ovserve.kinds.text.worker.kernels.attention import ADDRESSES

STATES = "_state_table."  # in the names of inputs: states of linear attention, one of a sequence
RESERVED_STATES = 2  # slots of these tables
ZERO_STATE, SPARE_STATE = range(RESERVED_STATES)  # never written, and written by `Runner.warm`
STATE_TOKENS = "la.subsequence_begins"  # apart, because drafts are sequences for attention only
STATE_PLACES = "la.block_indices", "la.block_indices_begins", "la.past_lens", "la.cache_interval"
STATE_INPUTS = (*STATE_PLACES, STATE_TOKENS)
MOST_STEP_TOKENS = 1 << 24

Ints = NDArray[np.int32] | NDArray[np.int64] | NDArray[np.uint8]
Floats = NDArray[np.float32]


class StepStates(NamedTuple):
    """The slots of a sequence's states in a step: of the one that is read, then of those that are written."""

    slots: tuple[int, ...]
    tokens: int
    kept_after: int = 0  # tokens, whose state is written to the slot before the last one
    is_each: bool = False  # a state is written after each token


class Runner:
    """A compiled model with its inputs bound. `run` waits for a step."""

    def __init__(self, model: openvino.CompiledModel, caches: Mapping[str, openvino.Tensor]) -> None:
        self._request = model.create_infer_request()
        self._ports = {port.any_name: port for port in model.inputs}
        self._bound: dict[str, Ints] = {}
        self._longest = np.zeros((), np.int32)
        self._tables: Ints | None = None  # of a fixed size, in which block tables are followed by anything
        tables = self._ports["block_indices"]
        if tables.partial_shape.is_static:
            self.bind("block_indices", np.zeros(list(tables.shape), np.int32))
            self._tables = self._bound["block_indices"]
        self.use(caches)
        self.bind("max_context_len", self._longest)

    def use(self, caches: Mapping[str, openvino.Tensor]) -> None:
        """Bind the KV cache, and the tables of states if the model has any."""
        self._caches = caches  # the request keeps no memory that a tensor shares with an array
        self.has_states = any(STATES in name for name in caches)
        if ADDRESSES in self._ports:
            addresses = [cache.data.ctypes.data for name, cache in caches.items() if STATES not in name]
            self.bind(ADDRESSES, np.array(addresses, np.int64).view(np.uint8))
        for name, cache in caches.items():
            if name in self._ports:
                self._request.set_tensor(self._ports[name], cache)

    def warm(self, block: int, tokens: int = 1, sequences: int = 1) -> None:
        """Compute tokens of each sequence in a block that no sequence has. The first inference lays out the
        weights, which takes SmolLM2 0.3 s, and a later one 0.01 s."""
        self.bind("input_ids", np.zeros(sequences * tokens, np.int64))
        self.bind("position_ids", np.tile(np.arange(tokens), sequences))
        begins, rows = (np.arange(size, dtype=np.int32) for size in (sequences + 1, sequences * tokens))
        places = {"past_lens": 0 * begins[1:], "subsequence_begins": tokens * begins, "rows": rows}
        tables = {"block_indices": 0 * begins[1:] + block, "block_indices_begins": begins}
        for name, values in (places | tables).items():
            self.bind(name, values)
        if self.has_states:
            self.bind_states([StepStates((ZERO_STATE, SPARE_STATE), tokens)] * sequences)
        self.run(tokens)

    def bind(self, name: str, array: Ints) -> None:
        """The runtime reads the array in each step, so that later changes of its values need no further
        call."""
        if name == "block_indices" and self._tables is not None:
            self._tables[: array.size] = array
        elif (port := self._ports.get(name)) is not None:  # a model without position embeddings has fewer
            self._bound[name] = array
            self._request.set_tensor(port, openvino.Tensor(array, shared_memory=True))

    def bind_states(self, steps: list[StepStates]) -> None:
        """Bind the slots of each sequence's states.

        The operations write the next slot whenever the tokens of a sequence are a multiple of the interval,
        and at the end. So the numbers of tokens are chosen such that they are once, never, or always."""
        intervals = [1 if step.is_each else MOST_STEP_TOKENS for step in steps]
        past = [MOST_STEP_TOKENS - step.kept_after if step.kept_after else 0 for step in steps]
        begins = [0, *accumulate(len(step.slots) for step in steps)]
        slots = [slot for step in steps for slot in step.slots]
        tokens = [0, *accumulate(step.tokens for step in steps)]
        for name, numbers in zip(STATE_INPUTS, (slots, begins, past, intervals, tokens), strict=True):
            self.bind(name, np.array(numbers, np.int32))

    def run(self, longest: int) -> Floats:
        """`longest`: tokens of the longest context. Return logits; they may be written to until the next
        step."""
        self._longest[...] = longest
        self._request.infer(share_outputs=True)
        logits: Floats = self._request.get_output_tensor(0).data
        return logits
