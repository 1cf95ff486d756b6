"""The peers of `benchmarks.inference`: their environments in .peers/, and their processes.

Each is installed from PyPI. An unavailable one is reported and left out.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import venv
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.conftest import ROOT

PEERS = ROOT / ".peers"
START_SECONDS = 60
CALM = 2.0  # seconds after the port answers, in which models may still load


class Kind(NamedTuple):
    wire: str
    environment: str  # in .peers/; empty: this one
    packages: tuple[str, ...]


KINDS = {
    "least": Kind("http", "", ()),
    "fastapi": Kind(
        "http",
        "inference",
        ("fastapi>=0.120,<1", "uvicorn[standard]>=0.38,<1", "onnxruntime>=1.23,<2", "numpy"),
    ),
    "mlserver": Kind("grpc", "mlserver", ("mlserver>=1.7,<2", "onnxruntime>=1.23,<2")),
}


@dataclass
class Peer:
    """A running peer. `label` is what the table calls it."""

    label: str
    wire: str
    address: str
    process: subprocess.Popen[bytes]

    @property
    def pids(self) -> list[int]:
        return [self.process.pid]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def setup() -> None:
    for name, kind in KINDS.items():
        if not kind.environment:
            continue
        place = PEERS / kind.environment
        if not place.exists():
            venv.create(place, with_pip=True)
        pip = [str(place / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*pip, *kind.packages], check=False).returncode:
            print(f"{name} cannot be installed", file=sys.stderr)


def start(name: str, files: dict[str, str]) -> Peer | None:
    """Start a peer with ONNX files by name; None if it does not run here."""
    kind = KINDS[name]
    python = PEERS / kind.environment / "bin/python" if kind.environment else Path(sys.executable)
    script = "inference_peer_apps.py" if kind.environment else "inference_least.py"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    models = [f"{model}={file}" for model, file in files.items()]
    arguments = [name, str(port)] if kind.environment else [str(port)]
    command = [str(python), str(Path(__file__).with_name(script)), *arguments, *models]
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": ""},
        )
    except OSError as error:
        print(f"{name} is left out: {error}; --setup installs it", file=sys.stderr)
        return None
    peer = Peer(f"{name} {kind.wire}", kind.wire, f"127.0.0.1:{port}", process)
    for _ in range(START_SECONDS):
        if process.poll() is not None:
            break
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            time.sleep(CALM)
            return peer
        time.sleep(1)
    peer.stop()
    print(f"{name} is left out: it did not start ({process.returncode})", file=sys.stderr)
    return None
