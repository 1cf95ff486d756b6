"""Processor facts that choices depend on, read from Linux's files.

Only cores available to this process count: a container's or a `taskset`'s share, not the machine's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

KERNEL_FLAGS = frozenset({"avx2", "fma", "f16c"})
ATTENTION_FLAGS = KERNEL_FLAGS | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


@dataclass(frozen=True)
class Processor:
    """The processor. `logical` counts hyper-threads, `cores` does not; both at least 1."""

    name: str = "unknown processor"
    cores: int = 1
    logical: int = 1
    flags: frozenset[str] = frozenset()

    @property
    def unpacked_is_faster(self) -> bool:
        """Return whether quantised weights run faster as 16 bits: on processors with matrix tiles (AMX,
        docs/performance.md).

        With AVX-512 in bf16 alone packed ones are faster.
        """
        return "amx_bf16" in self.flags

    @property
    def has_kernels(self) -> bool:
        """Return whether kernels of ours compute with quantised weights (docs/performance.md).

        They have no form for matrix tiles, with which OpenVINO reads prompts faster.
        """
        return self.flags >= KERNEL_FLAGS and not self.unpacked_is_faster

    @property
    def has_attention(self) -> bool:
        """Return whether a kernel of ours computes the attention of decodes."""
        return self.flags >= ATTENTION_FLAGS and self.has_kernels

    @property
    def wide_cache_is_faster(self) -> bool:
        """Return whether a KV cache in bf16 is faster than one in 8 bits (docs/performance.md).

        Processors without instructions for bf16 were not measured, those with AMX only in passing.
        """
        return "avx512_bf16" in self.flags and not self.unpacked_is_faster

    @property
    def int8_output_is_faster(self) -> bool:
        """Return whether an output layer in int8 per row is faster than one in groups of 8 bits
        (docs/performance.md).

        Measured where `wide_cache_is_faster` was.
        """
        return self.wide_cache_is_faster

    @property
    def bf16_is_slower(self) -> bool:
        """Return whether an encoder is slower in bf16 than in f32: on Intel processors that have AVX-512 in
        bf16 but no AMX, or whose AMX a virtual machine hides (docs/performance.md).

        There one port multiplies in bf16 and two do in f32, and values are converted besides.
        """
        return "Intel" in self.name and "avx512_bf16" in self.flags and "amx_bf16" not in self.flags


def processor(proc: Path = Path("/proc"), system: Path = Path("/sys")) -> Processor:
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = {
        _text(system / f"devices/system/cpu/cpu{i}/topology/thread_siblings_list") or i for i in usable
    }
    limit = _quota(system / "fs/cgroup/cpu.max")
    logical = max(1, min(len(usable), limit or len(usable)))
    lines = (line.partition(":") for line in _text(proc / "cpuinfo").splitlines())
    fields = {name.strip(): value.strip() for name, _, value in lines}
    return Processor(
        fields.get("model name", "unknown processor"),
        max(1, min(len(siblings), logical)),
        logical,
        frozenset(fields.get("flags", "").split()),
    )


def _quota(file: Path) -> int | None:
    """Return the whole processors a control group may use; None: no limit, or an unreadable one."""
    words = _text(file).split()
    if len(words) != 2 or not all(word.isdigit() for word in words) or not int(words[1]):
        return None
    return max(1, int(words[0]) // int(words[1]))


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
