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

from ovserve.engine.host.memory import Memory
from ovserve.serving.model_size import PROCESS_BYTES, RESERVE_BYTES

CONTEXT_TOKENS = 8192  # of KV cache that a model should have room for
READ_BYTES = 256 << 20  # more than most caches of processors hold
READ_SECONDS = 0.3


class Size(NamedTuple):
    """A model's sizes in GB, of KV cache in MB per 1,000 tokens. `per_token`: what one reads."""

    parameters: str
    form: str
    file: float
    memory: float
    per_token: float
    cache: int

    @property
    def needed(self) -> float:
        """Return the bytes of memory with a cache of CONTEXT_TOKENS, and what stays free."""
        cache = self.cache * 1e3 * CONTEXT_TOKENS
        return self.memory * 1e9 + cache + PROCESS_BYTES + RESERVE_BYTES


SIZES = (
    Size("1B", "Q4_0", 0.76, 0.88, 0.88, 16),
    Size("1B", "Q4_K_M", 0.80, 0.99, 0.99, 16),
    Size("1B", "Q8_0", 1.31, 1.39, 1.39, 16),
    Size("3B", "Q4_0", 1.91, 2.17, 2.17, 57),
    Size("3B", "Q4_K_M", 2.01, 2.49, 2.49, 57),
    Size("3B", "Q8_0", 3.41, 3.61, 3.61, 57),
    Size("8B", "Q4_0", 4.65, 5.23, 4.90, 66),
    Size("8B", "Q4_K_M", 4.91, 6.06, 5.70, 66),
    Size("8B", "Q8_0", 8.53, 9.03, 8.44, 66),
    Size("14B", "Q4_0", 8.51, 9.55, 9.06, 82),
    Size("14B", "Q4_K_M", 9.00, 11.09, 10.55, 82),
    Size("14B", "Q8_0", 15.69, 16.62, 15.74, 82),
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
        yield (
            f"  {size.parameters:>3} {size.form:6} file {size.file:5.2f} GB, memory {size.memory:5.2f} GB "
            f"and {size.cache} MB per 1,000 tokens, at most {bandwidth / size.per_token / 1e9:5.1f} tokens/s"
        )
    yield (
        "at most: a token of one stream reads the weights once, so tokens/s = GB/s / GB; docs/pull.md has "
        "the share that was measured"
    )
