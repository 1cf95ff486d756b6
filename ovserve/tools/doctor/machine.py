"""The machine: processor, memory, shared memory, open files and load."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from ovserve.engine.host.cpu import Processor, processor
from ovserve.engine.host.memory import Memory, memory
from ovserve.pull.recommend import fitting, read_bandwidth
from ovserve.tools.doctor.finding import Finding

MEGABYTE = 1 << 20
LITTLE_MEMORY, NO_MEMORY = 4 << 30, 1 << 30  # a model of 1.5 B parameters in 4 bits and its cache; any model
LITTLE_SHARED = 256 << 20  # a container's default is 64 MB, less than one large tensor
FORMS = ("Q4_0", "Q4_K_M", "Q8_0")
BUSY = 1.0  # running processes per core

# From fast to slow; the first one that a processor has is shown.
INSTRUCTIONS = (
    ("amx_bf16", "AMX"),
    ("avx512_vnni", "AVX-512 VNNI"),
    ("avx_vnni", "AVX VNNI"),
    ("avx512f", "AVX-512"),
    ("avx2", "AVX2"),
    ("sse4_2", "SSE4.2"),
)


def check_machine(connections: int, system: Path = Path("/sys")) -> Iterator[Finding]:
    """Yield the findings. `connections` is --max_connections."""
    found = processor()
    yield check_processor(found, platform.machine())
    if advice := _governor(system):
        yield Finding("governor", "slow", "powersave", advice)
    yield check_memory(*_memory())
    yield check_models_of(memory(), read_bandwidth())
    if (shared := Path("/dev/shm")).is_dir():
        yield check_shared_memory(shutil.disk_usage(shared).free)
    yield check_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0], connections)
    yield check_load(os.getloadavg()[0], found.logical)


def check_processor(found: Processor, architecture: str) -> Finding:
    shape = f"{found.name}, {found.cores} cores, {found.logical} threads"
    if architecture not in ("x86_64", "AMD64"):
        return Finding("processor", "ok", f"{shape}, {architecture}")
    best = next(((flag, name) for flag, name in INSTRUCTIONS if flag in found.flags), None)
    if best is None:
        advice = "OpenVINO needs SSE4.2; use another machine, or a virtual machine that passes its flags on"
        return Finding("processor", "problem", f"{shape}, no SSE4.2", advice)
    flag, name = best
    shape = f"{shape}, {name}"
    if flag == "sse4_2":
        advice = "without AVX2 every model is many times slower; a virtual machine may hide the flag"
        return Finding("processor", "slow", shape, advice)
    if flag in ("avx2", "avx512f"):
        advice = (
            "without VNNI, models in 8 and 4 bits read prompts more slowly; generating is bound by memory"
        )
        return Finding("processor", "slow", shape, advice)
    if found.cores < 2:
        advice = "the server and the engine share one core; give the container two"
        return Finding("processor", "slow", shape, advice)
    return Finding("processor", "ok", shape)


def check_memory(available: int, limit: str) -> Finding:
    shown = f"{available // MEGABYTE} MB available in the {limit}"
    if not available:
        return Finding("memory", "warning", "unknown", "this system does not say how much memory is left")
    if available < NO_MEMORY:
        return Finding("memory", "problem", shown, "stop other programs or raise the limit: no model fits")
    if available < LITTLE_MEMORY:
        advice = (
            "choose a model in 4 bits, and bound its cache with `cache_size`; `ovserve check` estimates both"
        )
        return Finding("memory", "warning", shown, advice)
    return Finding("memory", "ok", shown)


def check_models_of(available: Memory, bandwidth: float) -> Finding:
    """Say which models fit, and how fast they can be. `bandwidth` in bytes per second."""
    speed = f"memory is read at {bandwidth / 1e9:.1f} GB/s"
    if not (sizes := fitting(available)):
        return Finding(
            "model sizes", "warning", f"none of 1B or more fits; {speed}", "`ovserve pull smollm2` has 135M"
        )
    largest = [
        max((s for s in sizes if s.form == form), key=lambda s: s.memory, default=None) for form in FORMS
    ]
    texts = [
        f"{s.parameters} in {s.form} (at most {bandwidth / s.per_token / 1e9:.1f} tokens/s)"
        for s in largest
        if s
    ]
    return Finding("model sizes", "ok", f"up to {', '.join(texts)}; {speed}", "`ovserve pull` lists all")


def check_shared_memory(free: int) -> Finding:
    shown = f"{free // MEGABYTE} MB free in /dev/shm"
    if free < LITTLE_SHARED:
        advice = (
            "large tensors pass through it: podman run --shm-size 512m, or an emptyDir with medium Memory"
        )
        return Finding("shared memory", "warning", shown, advice)
    return Finding("shared memory", "ok", shown)


def check_files(limit: int, connections: int) -> Finding:
    shown = "no limit" if limit == resource.RLIM_INFINITY else f"{limit} open files"
    if limit != resource.RLIM_INFINITY and limit < connections + 100:
        advice = f"--max_connections {connections} needs more: ulimit -n {connections * 2}"
        return Finding("open files", "warning", shown, advice)
    return Finding("open files", "ok", shown)


def check_load(load: float, threads: int) -> Finding:
    shown = f"{load:.1f} running processes for {threads} threads"
    if load > threads * BUSY:
        return Finding("load", "slow", shown, "other programs take the cores that inference needs")
    return Finding("load", "ok", shown)


def _memory() -> tuple[int, str]:
    found = memory()
    return found.available, found.limit


def _governor(system: Path) -> str:
    """Return advice if the processor saves power; intel_pstate's powersave does not slow it down."""
    folder = system / "devices/system/cpu/cpu0/cpufreq"
    try:
        governor, driver = (
            (folder / name).read_text().strip() for name in ("scaling_governor", "scaling_driver")
        )
    except OSError:
        return ""
    slow = governor == "powersave" and driver not in ("intel_pstate", "amd-pstate-epp")
    return "the clock stays low: cpupower frequency-set -g performance" if slow else ""
