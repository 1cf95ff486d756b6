"""The list of this user's running servers, so that `ovserve run` loads no second copy of a model.

A server that listens on TCP writes its address to a file with its process id as name, in a directory that
only this user can enter. Without such a directory it is not listed, and serves all the same.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ovserve.http.transport.sockets import UNIX

log = logging.getLogger(__name__)


@contextmanager
def listed(url: str) -> Iterator[None]:
    """List this process as a server at `url` while the context is entered."""
    file = None
    if not url.startswith(UNIX):
        try:
            directory = _directory()
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_private(directory):
                file = directory / str(os.getpid())
                file.write_text(url)
        except OSError as error:
            log.debug("this server is not listed for `ovserve run`: %s", error)
    try:
        yield
    finally:
        if file is not None:
            with suppress(OSError):
                file.unlink(missing_ok=True)


def running_servers() -> list[str]:
    """Return the addresses of servers whose process lives, the youngest first; remove the others' files."""
    times: dict[str, int] = {}
    directory = _directory()
    with suppress(OSError):
        for file in directory.iterdir() if _is_private(directory) else ():
            with suppress(OSError, ValueError):
                if Path(f"/proc/{int(file.name)}").exists():
                    times[file.read_text()] = file.stat().st_mtime_ns
                else:
                    file.unlink()
    return sorted(times, key=lambda url: -times[url])


def _directory() -> Path:
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "ovserve"
    return Path(tempfile.gettempdir()) / f"ovserve-{os.getuid()}"


def _is_private(directory: Path) -> bool:
    """Return whether no other user can have written an address into it."""
    state = directory.lstat()
    return state.st_uid == os.getuid() and not state.st_mode & 0o022 and not directory.is_symlink()
