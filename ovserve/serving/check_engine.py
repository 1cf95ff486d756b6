"""Check an engine without its weights: are the files of a model complete, and does the library accept device
and properties.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from ovserve.engine.host.memory import memory
from ovserve.engine.protocol.specs import Spec, TextSpec
from ovserve.kinds.tensors.files import weights_fault
from ovserve.serving.model_size import GIGABYTE

PROBE_SECONDS = 60.0


def file_faults(directory: Path, names: Iterable[str]) -> Iterator[str]:
    """Yield faults of models in OpenVINO IR form: an XML file that is invalid, or truncated weights."""
    for name in names:
        xml, weights = directory / f"{name}.xml", directory / f"{name}.bin"
        if not (xml.is_file() and weights.is_file()):
            continue
        if fault := weights_fault(xml, weights):
            yield fault


def cache_fault(spec: Spec) -> str:
    """Return why the configured cache does not fit here; "" if it does, or the memory is unknown."""
    size = spec.cache_size if isinstance(spec, TextSpec) else 0
    size_in_bytes, there = size * GIGABYTE, memory()
    if not there.available or size_in_bytes <= there.available:
        return ""
    free = there.available / GIGABYTE
    return f"{size} GB are more than the {free:.1f} GB that are free on this {there.limit}"


class Probe:
    """Queries the library in a child process, once for each device and properties."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[str, str]] = {}
        self.untried = ""  # why the library could not be queried

    async def fault(self, device: str, properties: str) -> tuple[str, str]:
        """Return the option and what is wrong with it; empty if nothing is."""
        key = (device, properties)
        if key not in self._known:
            self._known[key] = await self._ask(device, json.loads(properties))
        return self._known[key]

    async def _ask(self, device: str, properties: object) -> tuple[str, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ovserve.kinds.text.worker.genai.probe",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                out, errors = await process.communicate(json.dumps([[device, properties]]).encode())
        except TimeoutError:
            process.kill()
            await process.wait()
            self.untried = f"OpenVINO gave no answer in {PROBE_SECONDS:g} s"
            return "", ""
        if process.returncode:
            last = errors.decode(errors="replace").strip().splitlines()[-1:]
            self.untried = f"OpenVINO could not be queried: {''.join(last) or process.returncode}"
            return "", ""
        ((option, reason),) = json.loads(out.splitlines()[-1])
        return option, reason
