"""Processor facts that choices depend on, read from Linux's files, and the properties of OpenVINO's devices.

Only cores available to this process count: a container's or a `taskset`'s share, not the machine's.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

KERNEL_FLAGS = frozenset({"avx2", "fma", "f16c"})
# oneDNN's variable, for tests and measurements: a processor is taken for one without what its value does not
# name. OpenVINO's plugin does not read it, and needs INFERENCE_PRECISION_HINT f32.
MAX_ISA = "ONEDNN_MAX_CPU_ISA"
LATER = {"AVX2": ("avx512", "amx", "avx_vnni"), "AVX2_VNNI": ("avx512", "amx")}


class Processor(msgspec.Struct, frozen=True):
    """The processor. `logical` counts hyper-threads, `cores` does not; both at least 1."""

    name: str = "unknown processor"
    cores: int = 1
    logical: int = 1
    flags: frozenset[str] = frozenset()

    @property
    def unpacked_is_faster(self) -> bool:
        """Return whether quantised weights run faster as 16 bits: with AMX (docs/performance.md)."""
        return "amx_bf16" in self.flags

    @property
    def has_kernels(self) -> bool:
        """Return whether kernels of ours compute with quantised weights (docs/performance.md).

        They have no form for matrix tiles, with which OpenVINO reads prompts faster.
        """
        return self.flags >= KERNEL_FLAGS and not self.unpacked_is_faster

    @property
    def wide_cache_is_faster(self) -> bool:
        """Return whether OpenVINO's attention is faster with a KV cache in bf16 than with one in 8 bits
        (docs/performance.md).

        Processors without instructions for bf16 were not measured, those with AMX only in passing.
        """
        return "avx512_bf16" in self.flags and not self.unpacked_is_faster

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
    hidden = LATER.get(os.environ.get(MAX_ISA, ""), ())
    return Processor(
        fields.get("model name", "unknown processor"),
        max(1, min(len(siblings), logical)),
        logical,
        frozenset(flag for flag in fields.get("flags", "").split() if not flag.startswith(hidden)),
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


OWN_PRECISION = ("INFERENCE_PRECISION_HINT", "EXECUTION_MODE_HINT")
CACHE = "CPU_RUNTIME_CACHE_CAPACITY"
RUNTIME_CACHE_KERNELS = 64  # of each kind of operator; a model uses each of them once or in every layer
PER_DEVICE = "DEVICE_PROPERTIES"
DIVIDED = ("AUTO", "HETERO", "MULTI")  # devices that hand a model to others


def device_properties(text: str, *devices: str) -> dict[str, Any]:
    """Return the properties in a JSON object of `plugin_config`, with a bound on what the runtime keeps for
    each shape, unless they have one.

    OpenVINO's CPU device keeps the kernels that it made for a shape of input, 5,000 for each kind of
    operator. A model whose inputs differ in length would grow for hours: Kokoro by 13 to 20 MB for each new
    sentence, an encoder by 0.6 to 1.5 MB for each new length (2026-11-26, AMD EPYC). docs/performance.md has
    what the bound costs.

    No bound is added for several devices, which would all get it. Raises ValueError for a text that is not
    JSON.
    """
    properties: dict[str, Any] = json.loads(text or "{}")
    own = properties.get(PER_DEVICE, {})
    if CACHE in properties or CACHE in own.get("CPU", {}) or len(devices) != 1:
        return properties
    (device,) = devices
    if device == "CPU":
        properties[CACHE] = RUNTIME_CACHE_KERNELS
    elif _may_use_cpu(device):
        properties[PER_DEVICE] = {**own, "CPU": {**own.get("CPU", {}), CACHE: RUNTIME_CACHE_KERNELS}}
    return properties


def properties_of(text: str, device: str) -> dict[str, Any]:
    """Return `device_properties` of an encoder or a voice, with f32 on a CPU that is slower in bf16."""
    properties = device_properties(text, device)
    if device == "CPU" and not set(OWN_PRECISION) & set(properties) and processor().bf16_is_slower:
        properties["INFERENCE_PRECISION_HINT"] = "f32"
    return properties


def _may_use_cpu(device: str) -> bool:
    """`AUTO` chooses among all devices, `HETERO:GPU,CPU` has a list."""
    kind, _, listed = device.partition(":")
    names = [name.partition("(")[0].strip() for name in listed.split(",")]
    return kind in DIVIDED and (not listed or "CPU" in names)


THREAD_NICENESS = 5


def below_the_steps() -> None:
    """Lower the priority of this thread, and of those that a library starts from it."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), THREAD_NICENESS)


def thread_states(pid: int) -> Iterator[str]:
    """Yield a line for each kind of thread: count, name, state as in `ps`, and where it waits in the kernel.
    The report on a stalled engine has them, because its own stacks show only Python."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            where = _text(task / "wchan").removeprefix("0")  # "0": it runs, or no permission
        except OSError:  # the thread has just ended
            continue
        counts[name, rest.split()[0], where] += 1
    for (name, state, where), count in counts.most_common():
        yield f"{count} threads {name!r} in state {state}{f', in {where}' if where else ''}"
