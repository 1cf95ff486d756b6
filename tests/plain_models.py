"""The small plain models of `scripts/dummy_models.py`, written once per session, and their raw tensors."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import ROOT


def write_models(directory: Path) -> Path:
    """In a process of its own: this one does not load the library."""
    subprocess.run([sys.executable, "-m", "scripts.dummy_models", str(directory)], cwd=ROOT, check=True)
    return directory


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def texts(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(e)) + e for e in elements)


def read_floats(raw: bytes | memoryview) -> list[float]:
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


def count_of(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
