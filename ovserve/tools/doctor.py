"""`ovserve doctor`: what this machine offers a server, what is missing, and what will be slow.

Of the machine: processor, memory, shared memory, open files and load. Of the software: versions, extras,
and the devices that OpenVINO finds, for which a child process imports it. Of places: ports and directories.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec

from ovserve import __version__, installation
from ovserve.children import bound_command
from ovserve.engine.host.cpu import Processor, processor
from ovserve.engine.host.kernels import LIBRARY, find_compiler, kernel_directories
from ovserve.engine.host.memory import BYTES_PER_MIB, Memory, memory
from ovserve.pull.recommend import fitting, read_bandwidth

# ok: as it should be; slow: works, and could be faster; warning: may fail later; problem: a server fails.
Status = Literal["ok", "slow", "warning", "problem"]


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One result. `advice` says why it matters and what to do; "" where nothing is to do."""

    check: str
    status: Status
    found: str
    advice: str = ""


class Report(msgspec.Struct, frozen=True):
    """`ok` is false if one of the checks found a problem."""

    ok: bool
    checks: Sequence[Finding]


def report(findings: Sequence[Finding]) -> Report:
    return Report(all(finding.status != "problem" for finding in findings), findings)


def text(result: Report) -> str:
    """Return a line per finding, and a second one for its advice."""
    width = max(len(finding.check) for finding in result.checks)
    lines = []
    for finding in result.checks:
        lines.append(f"{finding.status:<8} {finding.check:<{width}}  {finding.found}")
        if finding.advice:
            lines.append(f"{'':<8} {'':<{width}}  -> {finding.advice}")
    return "\n".join(lines)


LITTLE_MEMORY, NO_MEMORY = 4 << 30, 1 << 30  # a model of 1.5 B parameters in 4 bits and its cache; any model
LITTLE_SHARED = 256 << 20  # a container's default is 64 MB, less than one large tensor
FORMS = ("Q4_0", "Q4_K_M", "Q8_0")
MAX_LOAD_PER_CORE = 1.0  # running processes per core

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
    cpu = processor()
    yield check_processor(cpu, platform.machine())
    if cpu.has_kernels:
        yield check_kernels(find_compiler(), kernel_directories())
    if advice := _governor(system):
        yield Finding("governor", "slow", "powersave", advice)
    available = memory()
    yield check_memory(available.available, available.limit)
    yield check_models_of(available, read_bandwidth())
    if (shared := Path("/dev/shm")).is_dir():
        yield check_shared_memory(shutil.disk_usage(shared).free)
    yield check_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1], connections)
    yield check_load(os.getloadavg()[0], cpu.logical)


def check_processor(cpu: Processor, architecture: str) -> Finding:
    shape = f"{cpu.name}, {cpu.cores} cores, {cpu.logical} threads"
    if architecture not in ("x86_64", "AMD64"):
        return Finding("processor", "ok", f"{shape}, {architecture}")
    best = next(((flag, name) for flag, name in INSTRUCTIONS if flag in cpu.flags), None)
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
    if cpu.cores < 2:
        advice = "the server and the engine share one core; give the container two"
        return Finding("processor", "slow", shape, advice)
    return Finding("processor", "ok", shape)


def check_kernels(compiler: str | None, directories: Sequence[Path]) -> Finding:
    """The kernels for quantised weights are compiled at the first load."""
    if compiler is not None or any(list(directory.glob(LIBRARY)) for directory in directories):
        return Finding("kernels", "ok", "for weights in 4 and 8 bits")
    advice = "install a C++ compiler (apt install g++): quantised models then take less memory and time"
    return Finding("kernels", "slow", "no C++ compiler", advice)


def check_memory(available: int, limit: str) -> Finding:
    state = f"{available // BYTES_PER_MIB} MB available in the {limit}"
    if not available:
        return Finding("memory", "warning", "unknown", "this system does not say how much memory is left")
    if available < NO_MEMORY:
        return Finding("memory", "problem", state, "stop other programs or raise the limit: no model fits")
    if available < LITTLE_MEMORY:
        advice = (
            "choose a model in 4 bits, and bound its cache with `cache_size`; `ovserve check` estimates both"
        )
        return Finding("memory", "warning", state, advice)
    return Finding("memory", "ok", state)


def check_models_of(available: Memory, bandwidth: float) -> Finding:
    """Say which models fit, and how fast they can be. `bandwidth` in bytes per second."""
    speed = f"memory is read at {bandwidth / 1e9:.1f} GB/s"
    if not (sizes := fitting(available)):
        return Finding(
            "model sizes", "warning", f"none of 1B or more fits; {speed}", "`ovserve pull smollm2` has 135M"
        )
    largest = [
        max((s for s in sizes if s.form == form), key=lambda s: s.weights.memory, default=None)
        for form in FORMS
    ]
    texts = [
        f"{s.parameters} in {s.form} (at most {bandwidth / s.weights.per_token / 1e9:.1f} tokens/s)"
        for s in largest
        if s
    ]
    return Finding("model sizes", "ok", f"up to {', '.join(texts)}; {speed}", "`ovserve pull` lists all")


def check_shared_memory(free: int) -> Finding:
    state = f"{free // BYTES_PER_MIB} MB free in /dev/shm"
    if free < LITTLE_SHARED:
        advice = (
            "large tensors pass through it: podman run --shm-size 512m, or an emptyDir with medium Memory"
        )
        return Finding("shared memory", "warning", state, advice)
    return Finding("shared memory", "ok", state)


def check_files(limit: int, connections: int) -> Finding:
    state = "no limit" if limit == resource.RLIM_INFINITY else f"{limit} open files"
    if limit != resource.RLIM_INFINITY and limit < connections + 100:
        advice = f"--max_connections {connections} needs more: ulimit -n {connections * 2}"
        return Finding("open files", "warning", state, advice)
    return Finding("open files", "ok", state)


def check_load(load: float, threads: int) -> Finding:
    state = f"{load:.1f} running processes for {threads} threads"
    if load > threads * MAX_LOAD_PER_CORE:
        return Finding("load", "slow", state, "other programs take the cores that inference needs")
    return Finding("load", "ok", state)


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


LIBRARIES = ("openvino", "openvino-genai", "openvino-tokenizers")
PROBE_TIMEOUT_SECONDS = 60.0  # to import OpenVINO and ask its plugins, on a busy machine
EXTRAS = (
    ("uvloop", "fast", "slow", "the event loop costs more CPU per token"),
    ("huggingface_hub", "hub", "warning", "`ovserve pull OWNER/NAME` and --source_model cannot fetch models"),
)
NODES = (
    ("GPU", Path("/dev/dri"), "renderD*", "intel-opencl-icd", "render"),
    ("NPU", Path("/dev/accel"), "accel*", "intel-driver-compiler-npu and intel-level-zero-npu", "render"),
)


class Devices(msgspec.Struct, frozen=True):
    """The answer of the child. `devices` are names for people by OpenVINO's."""

    version: str
    devices: dict[str, str]


def check_software() -> Iterator[Finding]:
    yield Finding("ovserve", "ok", f"{__version__}, Python {sys.version.split()[0]}")
    yield check_versions({name: _version(name) for name in LIBRARIES})
    for module, extra, status, why in EXTRAS:
        if importlib.util.find_spec(module) is None:
            advice = f"{why}; {installation.extra(extra)}"
            yield Finding(f"extra {extra}", "slow" if status == "slow" else "warning", "missing", advice)
    probe = read_devices()
    if isinstance(probe, str):
        yield Finding("devices", "problem", probe, "OpenVINO cannot be imported; install it again")
        return
    names = ", ".join(f"{device} ({name})" for device, name in probe.devices.items())
    yield Finding("devices", "ok" if "CPU" in probe.devices else "problem", names or "none")
    for device, folder, pattern, package, group in NODES:
        present = sorted(folder.glob(pattern)) if folder.is_dir() else []
        if present and not any(name.startswith(device) for name in probe.devices):
            advice = f"install {package}, and add the user to the group {group}"
            yield Finding(
                f"{device} driver", "warning", f"{present[0]} is there, but OpenVINO has no {device}", advice
            )


def check_versions(versions: dict[str, str]) -> Finding:
    """Libraries of OpenVINO with different minor versions fail when they load each other."""
    missing = [name for name, version in versions.items() if not version]
    listed = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    if missing:
        return Finding(
            "versions",
            "problem",
            f"missing: {', '.join(missing)}",
            "install the requirements of this package again",
        )
    if len({tuple(version.split(".")[:2]) for version in versions.values()}) > 1:
        advice = "they must be of one release: pip install -U openvino openvino-genai openvino-tokenizers"
        return Finding("versions", "problem", listed, advice)
    return Finding("versions", "ok", listed)


def read_devices() -> Devices | str:
    """Return what OpenVINO finds, or why it could not be asked."""
    command = bound_command([sys.executable, "-m", "ovserve.kinds.tensors.worker.devices"])
    try:
        process = subprocess.run(command, capture_output=True, timeout=PROBE_TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"OpenVINO did not answer within {PROBE_TIMEOUT_SECONDS:g} s"
    if process.returncode:
        lines = process.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"OpenVINO ended with {process.returncode}"
    try:
        return msgspec.json.decode(process.stdout, type=Devices)
    except msgspec.DecodeError as error:
        return f"OpenVINO answered {error}"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


LITTLE_DISK = 5 << 30  # a model of 7 B parameters in 4 bits


def check_ports(ports: Mapping[str, int]) -> Iterator[Finding]:
    """Yield a finding for each port but 0. `ports` are by name of the option."""
    for name, port in ports.items():
        if not port:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                why = os.strerror(error.errno or 0)
                yield Finding(name, "problem", f"{port}: {why}", f"choose another with --{name}")
            else:
                yield Finding(name, "ok", f"{port} is free")


def check_store(path: Path) -> Finding:
    """Check the file of stored responses: it is made with its directories."""
    folder = _existing(path.parent)
    if not os.access(path if path.exists() else folder, os.W_OK):
        advice = "name another with --response_store_path, or switch it off: --response_store off"
        return Finding("stored responses", "warning", f"cannot write {path}", advice)
    return Finding("stored responses", "ok", str(path))


def check_models(path: Path) -> Finding:
    folder = _existing(path)
    free = shutil.disk_usage(folder).free
    state = f"{path}, {free // 10**9} GB free"
    if not os.access(folder, os.W_OK):
        return Finding(
            "models", "warning", f"cannot write {path}", "pulls fail: --model_repository_path names it"
        )
    if free < LITTLE_DISK:
        return Finding("models", "warning", state, "a model of 7 B parameters in 4 bits takes 4 GB")
    return Finding("models", "ok", state)


def check_cache(path: str) -> Finding:
    if not path:
        advice = "models are compiled at each start; --cache_dir keeps them, which pays most for GPU and NPU"
        return Finding("compiled models", "slow", "not kept", advice)
    folder = _existing(Path(os.path.expanduser(path)))
    if not os.access(folder, os.W_OK):
        return Finding("compiled models", "problem", f"cannot write {path}", "--cache_dir must be writable")
    return Finding("compiled models", "ok", path)


def _existing(path: Path) -> Path:
    """Return the nearest directory that is there."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())
