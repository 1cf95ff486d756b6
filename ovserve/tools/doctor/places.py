"""Ports and directories that a server with these settings would use."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from ovserve.tools.doctor.finding import Finding

LITTLE_DISK = 5 << 30  # a model of 7 B parameters in 4 bits


def check_ports(ports: Mapping[str, int]) -> Iterator[Finding]:
    """Yield a finding for each port but 0. `ports` are by name of the option."""
    for name, port in ports.items():
        if not port:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                why = os.strerror(error.errno or 0)
                yield Finding(name, "problem", f"{port}: {why}", f"choose another with --{name}")
            else:
                yield Finding(name, "ok", f"{port} is free")


def check_store(path: Path) -> Finding:
    """Check the file of stored responses: it is made with its directories."""
    folder = _existing(path.parent)
    if not os.access(path if path.exists() else folder, os.W_OK):
        advice = "name another with --response_store_path, or switch it off: --response_store off"
        return Finding("stored responses", "warning", f"cannot write {path}", advice)
    return Finding("stored responses", "ok", str(path))


def check_models(path: Path) -> Finding:
    folder = _existing(path)
    free = shutil.disk_usage(folder).free
    shown = f"{path}, {free // 10**9} GB free"
    if not os.access(folder, os.W_OK):
        return Finding(
            "models", "warning", f"cannot write {path}", "pulls fail: --model_repository_path names it"
        )
    if free < LITTLE_DISK:
        return Finding("models", "warning", shown, "a model of 7 B parameters in 4 bits takes 4 GB")
    return Finding("models", "ok", shown)


def check_cache(path: str) -> Finding:
    if not path:
        advice = "models are compiled at each start; --cache_dir keeps them, which pays most for GPU and NPU"
        return Finding("compiled models", "slow", "not kept", advice)
    folder = _existing(Path(path).expanduser())
    if not os.access(folder, os.W_OK):
        return Finding("compiled models", "problem", f"cannot write {path}", "--cache_dir must be writable")
    return Finding("compiled models", "ok", path)


def _existing(path: Path) -> Path:
    """Return the nearest directory that is there."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())
