"""Read an image from a file under --allowed_local_media_path.

The path is resolved, compared with the directory, and then opened step by step without following any link. So
the file compared is the file read, even if links change in between.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ovserve.errors import InvalidArgument
from ovserve.sandbox.images.policy import Policy

FILE_SCHEME = "file:"


def read_file(text: str, policy: Policy, max_bytes: int, param: str) -> bytes:
    """Read `text`, a path or a file:// URL. Raises InvalidArgument, which reveals nothing about other
    files."""
    if policy.directory is None:
        raise InvalidArgument(
            f"{param}: files are not allowed on this server (--allowed_local_media_path)", param=param
        )
    given = Path(_path(text, param))
    if ".." in given.parts:
        raise InvalidArgument(f"{param}: a path must not contain '..'", param=param)
    try:
        path = given.resolve()
    except (OSError, RuntimeError, ValueError) as exc:  # a loop of links; a NUL
        raise InvalidArgument(f"{param}: no such file", param=param) from exc
    if not path.is_relative_to(policy.directory) or path == policy.directory:
        raise InvalidArgument(f"{param}: the file is outside of the allowed directory", param=param)
    try:
        with os.fdopen(_open(policy.directory, path.relative_to(policy.directory)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidArgument(f"{param}: not a regular file", param=param)
            data = file.read(max_bytes + 1)
    except OSError as exc:
        raise InvalidArgument(f"{param}: the file cannot be read: {exc.strerror}", param=param) from exc
    if len(data) > max_bytes:
        raise InvalidArgument(f"{param}: the file is larger than {max_bytes} bytes", param=param)
    return data


def _path(text: str, param: str) -> str:
    if not text.lower().startswith(FILE_SCHEME):
        return text
    url = urlsplit(text)
    if url.netloc not in ("", "localhost"):
        raise InvalidArgument(f"{param}: a file URL must not name a host, got {url.netloc!r}", param=param)
    return unquote(url.path)


def _open(directory: Path, relative: Path) -> int:
    """Open the file from `directory` without following a link, and without waiting for a pipe."""
    *folders, name = relative.parts
    at = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)
