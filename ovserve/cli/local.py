"""Pulled models on disk: where they are, and their names."""

from __future__ import annotations

import os
from pathlib import Path

from ovserve.errors import InvalidArgument, NotFound
from ovserve.pull import record
from ovserve.serving.settings import GRAPH_FILE

DEFAULT = "models"
VARIABLES = ("OVSERVE_MODEL_REPOSITORY_PATH", "OVMS_MODEL_REPOSITORY_PATH")


def repository(path: str = "") -> Path:
    """Return the directory of models: as given, of the environment, or ./models."""
    location = path or next((text for name in VARIABLES if (text := os.environ.get(name))), DEFAULT)
    return Path(os.path.expanduser(location))


def names_in(place: Path) -> list[str]:
    """Return the names of models in a repository: folders, or OWNER/NAME of the hub's."""
    folders = {path.parent for name in (GRAPH_FILE, record.FILE) for path in place.glob(f"*/{name}")}
    folders |= {path.parent for name in (GRAPH_FILE, record.FILE) for path in place.glob(f"*/*/{name}")}
    return sorted(path.relative_to(place).as_posix() for path in folders)


def find(place: Path, name: str) -> Path:
    """Return the folder of a model. Raises NotFound that lists what is there, InvalidArgument."""
    if not name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise InvalidArgument(f"expected the name of a model in {place}, got {name!r}")
    names = names_in(place)
    if name not in names:
        raise NotFound(f"{place} has no model {name!r}; it has {', '.join(names) or 'none'}")
    return place / name
