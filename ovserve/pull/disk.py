"""Check the free disk space before something large is written."""

from __future__ import annotations

import shutil
from pathlib import Path

from ovserve.errors import ResourceExhausted

DISK_MARGIN = 1.02  # side files, and blocks that are not full


def require(directory: Path, needed: float, what: str) -> None:
    """Raise ResourceExhausted when `needed` bytes do not fit where `directory` is or will be."""
    place = next(p for p in (directory.absolute(), *directory.absolute().parents) if p.exists())
    free = shutil.disk_usage(place).free
    if needed * DISK_MARGIN > free:
        raise ResourceExhausted(
            f"{what} needs {needed * DISK_MARGIN / 1e9:.2f} GB on the disk of {directory}, which has "
            f"{free / 1e9:.2f} GB free"
        )
