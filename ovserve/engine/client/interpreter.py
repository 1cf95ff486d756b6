"""Starts a process of the engine: by the server's own Python, or by another one.

A Python node may name one, such as that of a virtual environment with the packages of its handlers.
The server's packages come last on the path there, so that those of the environment win.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

from ovserve.engine.protocol.launch import WORKER

BOOT = """
import sys
if sys.version_info[:2] != {version}:
    sys.exit("the interpreter is Python %d.%d, and the server's is {shown}: its packages do not load there"
             % sys.version_info[:2])
sys.path += {paths}
import {worker} as worker
worker.start(sys.argv)
"""


def worker_command(python: str) -> list[str]:
    """Return the command without its arguments; `python` is empty for the server's own."""
    if not python:
        return [sys.executable, "-m", WORKER]
    version = sys.version_info[:2]
    package = str(Path(__file__).resolve().parents[3])
    paths = list(dict.fromkeys([package, *(path for path in sys.path if path.endswith("-packages"))]))
    shown = "{}.{}".format(*version)
    return [python, "-c", BOOT.format(version=version, shown=shown, paths=paths, worker=WORKER)]


async def spawn_worker(python: str, *marks: str) -> tuple[asyncio.subprocess.Process, socket.socket]:
    """Return the process and our end of its socket. Raises OSError."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *worker_command(python),
                str(theirs.fileno()),
                *marks,
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
    except BaseException:
        ours.close()
        raise
    return process, ours
