"""Versions, extras, and the devices that OpenVINO finds. A child process imports OpenVINO for that."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import msgspec

from ovserve import __version__, installation
from ovserve.tools.doctor.finding import Finding

LIBRARIES = ("openvino", "openvino-genai", "openvino-tokenizers")
SECONDS = 60.0  # to import OpenVINO and ask its plugins, on a busy machine
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
    found = read_devices()
    if isinstance(found, str):
        yield Finding("devices", "problem", found, "OpenVINO cannot be imported; install it again")
        return
    shown = ", ".join(f"{device} ({name})" for device, name in found.devices.items())
    yield Finding("devices", "ok" if "CPU" in found.devices else "problem", shown or "none")
    for device, folder, pattern, package, group in NODES:
        present = sorted(folder.glob(pattern)) if folder.is_dir() else []
        if present and not any(name.startswith(device) for name in found.devices):
            advice = f"install {package}, and add the user to the group {group}"
            yield Finding(
                f"{device} driver", "warning", f"{present[0]} is there, but OpenVINO has no {device}", advice
            )


def check_versions(versions: dict[str, str]) -> Finding:
    """Libraries of OpenVINO with different minor versions fail when they load each other."""
    missing = [name for name, version in versions.items() if not version]
    shown = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    if missing:
        return Finding(
            "versions",
            "problem",
            f"missing: {', '.join(missing)}",
            "install the requirements of this package again",
        )
    if len({tuple(version.split(".")[:2]) for version in versions.values()}) > 1:
        advice = "they must be of one release: pip install -U openvino openvino-genai openvino-tokenizers"
        return Finding("versions", "problem", shown, advice)
    return Finding("versions", "ok", shown)


def read_devices() -> Devices | str:
    """Return what OpenVINO finds, or why it could not be asked."""
    command = [sys.executable, "-m", "ovserve.kinds.tensors.worker.devices"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"OpenVINO did not answer within {SECONDS:g} s"
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"OpenVINO ended with {done.returncode}"
    try:
        return msgspec.json.decode(done.stdout, type=Devices)
    except msgspec.DecodeError as error:
        return f"OpenVINO answered {error}"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
