"""The server process of a replica, which it ends with. Its sockets are in a private directory."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from ovserve.children import bound_command

PREFIX = "ovserve-ray-"
MANAGED = {  # options that the replica sets itself
    "config_path", "model_path", "model_name", "source_model", "graphs_dir", "rest_port", "rest_bind_address",
    "grpc_port", "tls_cert_file", "tls_key_file", "tls_client_ca_file", "api_keys_file", "metrics_port",
    "metrics_bind_address", "file_system_poll_wait_seconds", "console",
}  # fmt: skip
log = logging.getLogger(__name__)


class Child:
    """One `ovserve serve`. `directory` holds its configuration and its sockets."""

    def __init__(self) -> None:
        _sweep()
        self.directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self.socket = self.directory / "http"
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def start(self, options: Mapping[str, str], config: Path, keys: Path | None) -> None:
        """Start the server. It gets SIGKILL when the calling thread ends, so this is the replica's loop."""
        flags = {
            "config_path": str(config),
            "rest_bind_address": f"unix:{self.socket}",
            "file_system_poll_wait_seconds": "0",
            "console": "off",
        }
        flags |= {"api_keys_file": str(keys)} if keys is not None else {}
        command = bound_command([sys.executable, "-m", "ovserve", "serve"])
        for name, value in {**options, **flags}.items():
            command += [f"--{name}", value]
        self._process = subprocess.Popen(command, env=environment(os.environ), stdin=subprocess.DEVNULL)

    def watch(self, ended: Callable[[int], None]) -> None:
        """Call `ended` with the exit code, in a thread of its own, if the server ends before `stop`."""
        process = self._process
        assert process is not None

        def wait() -> None:
            code = process.wait()
            if not self._stopping:
                ended(code)

        threading.Thread(target=wait, name="ovserve-child", daemon=True).start()

    def stop(self, seconds: float) -> None:
        """End the server as `end` does, and remove its files. Blocks."""
        self._stopping = True
        self.end(seconds)
        shutil.rmtree(self.directory, ignore_errors=True)

    def end(self, seconds: float) -> None:
        """Let running requests end, for at most `seconds`, and end the server. Blocks."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the child's variables: without those of options that the replica sets, and without Ray's limit
    of threads, which is the number of CPUs that the replica reserves."""
    managed = {f"OVSERVE_{name.upper()}" for name in MANAGED}
    return {
        name: value for name, value in environ.items() if name not in managed and name != "OMP_NUM_THREADS"
    }


def _sweep() -> None:
    """Remove the directories of replicas that were killed: their process is gone, and no one listens."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        pid = path.name.removeprefix(PREFIX).partition("-")[0]
        if not pid.isdigit() or Path(f"/proc/{pid}").exists():
            continue
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path / "http"))
            except ConnectionRefusedError:
                shutil.rmtree(path, ignore_errors=True)
            except OSError:
                continue  # a server of another container that has not begun to listen
