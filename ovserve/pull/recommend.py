"""Recommend models for a machine, with their speed, in `ovserve pull` without SOURCE and `ovserve doctor`.

A token of one stream reads all weights but the rows of the embedding once, so the memory's bandwidth over
these bytes bounds its speed. SIZES are computed from the heads of files in real shapes, Llama 3.2 and 3.1 and
Qwen3, by `gguf_forms.converted_size`; docs/pull.md has what was measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from ovserve.engine.host.kernels import have_kernels
from ovserve.engine.host.memory import Memory
from ovserve.serving.model_size import PROCESS_BYTES, RESERVE_BYTES

CONTEXT_TOKENS = 8192  # of KV cache that a model should have room for
READ_BYTES = 256 << 20  # more than most caches of processors hold
READ_SECONDS = 0.3


class Weights(NamedTuple):
    """Sizes in GB. `per_token`: what one token of one stream reads."""

    memory: float
    per_token: float


class Size(NamedTuple):
    """A model's sizes in GB, of KV cache in MB per 1,000 tokens: with our kernels, and with OpenVINO's."""

    parameters: str
    form: str
    file: float
    ours: Weights
    openvinos: Weights
    cache: int

    @property
    def weights(self) -> Weights:
        return self.ours if have_kernels() else self.openvinos

    @property
    def needed(self) -> float:
        """Return the bytes of memory with a cache of CONTEXT_TOKENS, and what stays free."""
        cache = self.cache * 1e3 * CONTEXT_TOKENS
        return self.weights.memory * 1e9 + cache + PROCESS_BYTES + RESERVE_BYTES


SIZES = (
    Size("1B", "Q4_0", 0.76, Weights(0.76, 0.76), Weights(0.88, 0.88), 16),
    Size("1B", "Q4_K_M", 0.8, Weights(0.81, 0.81), Weights(0.99, 0.99), 16),
    Size("1B", "Q8_0", 1.31, Weights(1.31, 1.31), Weights(1.39, 1.39), 16),
    Size("3B", "Q4_0", 1.91, Weights(1.91, 1.91), Weights(2.17, 2.17), 57),
    Size("3B", "Q4_K_M", 2.01, Weights(2.05, 2.05), Weights(2.49, 2.49), 57),
    Size("3B", "Q8_0", 3.41, Weights(3.41, 3.41), Weights(3.61, 3.61), 57),
    Size("8B", "Q4_0", 4.65, Weights(4.65, 4.36), Weights(5.23, 4.9), 66),
    Size("8B", "Q4_K_M", 4.91, Weights(5.04, 4.71), Weights(6.09, 5.7), 66),
    Size("8B", "Q8_0", 8.53, Weights(8.53, 7.97), Weights(9.03, 8.44), 66),
    Size("14B", "Q4_0", 8.51, Weights(8.51, 8.07), Weights(9.55, 9.06), 82),
    Size("14B", "Q4_K_M", 9.0, Weights(9.22, 8.73), Weights(11.13, 10.55), 82),
    Size("14B", "Q8_0", 15.69, Weights(15.69, 14.86), Weights(16.61, 15.74), 82),
)


def fitting(memory: Memory) -> list[Size]:
    """Return the sizes that memory holds; all where it is unknown."""
    return [size for size in SIZES if not memory.available or size.needed <= memory.available]


def read_bandwidth() -> float:
    """Measure how many bytes per second all cores read from memory together, in half a second."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parts = np.array_split(np.ones(READ_BYTES // 8), threads)
    best, end = 0.0, time.perf_counter() + READ_SECONDS
    with ThreadPoolExecutor(threads) as pool:
        while not best or time.perf_counter() < end:
            began = time.perf_counter()
            list(pool.map(np.max, parts))
            best = max(best, READ_BYTES / (time.perf_counter() - began))
    return best


def advice(memory: Memory, bandwidth: float) -> Iterator[str]:
    """Yield lines of a table. `bandwidth` in bytes per second."""
    sizes = fitting(memory)
    amount = f"{memory.available / 1e9:.1f} GB" if memory.available else "an unknown amount"
    yield (
        f"the {memory.limit} has {amount} of memory left, and reads {bandwidth / 1e9:.1f} GB/s; with a "
        f"context of {CONTEXT_TOKENS:,} tokens, these .gguf models fit:"
    )
    if not sizes:
        yield "  none of 1B parameters or more; smollm2 (135M) takes 0.4 GB"
    for size in sizes:
        takes, speed = size.weights.memory, bandwidth / size.weights.per_token / 1e9
        yield (
            f"  {size.parameters:>3} {size.form:6} file {size.file:5.2f} GB, memory {takes:5.2f} GB "
            f"and {size.cache} MB per 1,000 tokens, at most {speed:5.1f} tokens/s"
        )
    yield (
        "at most: a token of one stream reads the weights once, so tokens/s = GB/s / GB; docs/pull.md has "
        "the share that was measured"
    )
