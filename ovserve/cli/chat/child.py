"""The server of `run` and `batch`, in a process of its own: it ends with the process that has started it.

That one holds the other end of stdin, so that even a killed `ovserve run` leaves no server.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from ovserve.cli.chat.connection import UNIX, Connection
from ovserve.errors import LoadError

POLL_SECONDS = 0.05
END_SECONDS = 5.0
_NAMES = ("SOURCE", "MODEL_", "CONFIG", "GRAPHS", "REST_", "GRPC_", "TLS_", "API_", "LOG_")
OF_ANOTHER = tuple(f"OVSERVE_{name}" for name in _NAMES)  # variables of a server that has other clients
SHOWN_LINES = 8  # of the log of a server that did not start


class OwnServer:
    """`with OwnServer(arguments) as connection`. `arguments` are those of `ovserve serve`.

    It listens on a socket in a directory that only this user can enter.
    """

    def __init__(self, arguments: Sequence[str], store: Path | None = None) -> None:
        """`store`: the file of --response_store_path, for work that outlives the server."""
        keeps = ["--response_store", "off"] if store is None else ["--response_store_path", str(store)]
        self._arguments = [*arguments, *keeps]
        self._place = tempfile.TemporaryDirectory(prefix="ovserve-")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Connection:
        """Raises LoadError with the end of the server's log."""
        place = Path(self._place.name)
        command = [sys.executable, "-m", __name__, "serve", *self._arguments]
        command += ["--rest_bind_address", f"{UNIX}{place}/s", "--grpc_port", "0"]
        command += ["--file_system_poll_wait_seconds", "0"]
        environment = {k: v for k, v in os.environ.items() if k != "API_KEY" and not k.startswith(OF_ANOTHER)}
        try:
            with (place / "log").open("wb") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,  # Ctrl-C stops an answer, not the server
                )
            connection = Connection(f"{UNIX}{place}/s")
            while not connection.ready():
                if self._process.poll() is not None:
                    raise LoadError(_last_lines(place / "log"))
                time.sleep(POLL_SECONDS)
        except BaseException:
            self._end()
            raise
        return connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        process = self._process
        if process is not None and process.stdin is not None:
            process.stdin.close()  # the server ends by itself
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._place.cleanup()


def _last_lines(log: Path) -> str:
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    ours = ("ovserve: ", "ovserve serve: ")
    messages = [line.removeprefix(ours[0]) for line in lines if line.startswith(ours)]
    return "\n".join(messages or lines[-SHOWN_LINES:]) or "the server ended without a word"


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)  # answers that no one reads are not waited for


if __name__ == "__main__":
    from ovserve.cli import main

    threading.Thread(target=_end_with_parent, daemon=True).start()
    main(sys.argv[1:])
