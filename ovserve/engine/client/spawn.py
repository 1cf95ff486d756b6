"""Starts a process of the engine by the standard library alone, with the server's own Python or another one.

`ovserve serve` starts the first one before it imports anything else. The libraries of the engine process take
0.25 s to import, and so do the parts of the server that find out what it should load. An event loop starts a
process 0.15 s after the interpreter, so this module imports no asyncio; `EngineProcess` takes the child over.

A Python node may name another interpreter, such as that of a virtual environment with the packages of its
handlers. The server's packages come last on the path there, so that those of the environment win.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from ovserve.engine.protocol.launch import WORKER

SHARED_MEMORY = "/dev/shm"

BOOT = """
import sys
if sys.version_info[:2] != {version}:
    sys.exit("the interpreter is Python %d.%d, and the server's is {shown}: its packages do not load there"
             % sys.version_info[:2])
sys.path += {paths}
import {worker} as worker
worker.start(sys.argv)
"""


def choose_temporary_directory() -> None:
    """Set TMPDIR to shared memory where no directory for temporary files can be written.

    Containers with a read-only root have such a one all the same. It is for this process and its children.
    """
    places = [os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")]
    places += ["/tmp", "/var/tmp", "/usr/tmp", os.curdir]  # as `tempfile`, which takes long to import
    if not any(place and os.access(place, os.W_OK | os.X_OK) for place in places):
        os.environ["TMPDIR"] = SHARED_MEMORY


class Child:
    """The process and our end of its socket."""

    def __init__(self, mark: str, python: str = "") -> None:
        """Start it. `mark`: see `launch.py`; `python` is empty for the server's own. Raises OSError."""
        self.socket, theirs = socket.socketpair()
        try:
            with theirs:
                self.process = subprocess.Popen(
                    [*_worker_command(python), str(theirs.fileno()), mark],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
        except OSError:
            self.socket.close()
            raise

    def end(self) -> None:
        """Kill it if it still runs."""
        self.process.kill()
        self.process.wait()
        self.socket.close()
        if self.process.stdout is not None:
            self.process.stdout.close()


def _worker_command(python: str) -> list[str]:
    """Return the command without its arguments."""
    if not python:
        return [sys.executable, "-m", WORKER]
    version = sys.version_info[:2]
    package = os.path.abspath(__file__).rsplit(os.sep, 4)[0]
    paths = list(dict.fromkeys([package, *(path for path in sys.path if path.endswith("-packages"))]))
    version_text = "{}.{}".format(*version)
    return [python, "-c", BOOT.format(version=version, shown=version_text, paths=paths, worker=WORKER)]
