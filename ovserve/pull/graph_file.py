"""Write graph.pbtxt into a directory: checked first, and never over a changed one."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from ovserve.calculators.shipped import MODULES
from ovserve.errors import LoadError
from ovserve.graph import Registry
from ovserve.pull.record import Record, digest
from ovserve.serving.loader import Checked, check
from ovserve.serving.settings import GRAPH_FILE, ServableSpec


def is_changed(directory: Path, record: Record) -> bool:
    """Return whether there is a graph that differs from the one that pull wrote."""
    file = directory / GRAPH_FILE
    return file.is_file() and digest(file) != record.graph


def check_options(text: str) -> None:
    """Check that a graph over some model would load, before anything is fetched. Raises LoadError."""
    with tempfile.TemporaryDirectory(prefix="ovserve-pull-") as scratch:
        (Path(scratch) / GRAPH_FILE).write_text(text)
        try:
            check_file(Path(scratch), GRAPH_FILE).graph.close()
        except LoadError as error:
            raise LoadError(f"{error.field}: {error.reason}" if error.field else error.reason) from error


def check_file(directory: Path, name: str) -> Checked:
    registry = Registry(MODULES)
    registry.add_entry_points()
    base = directory.absolute()
    return check(ServableSpec(base.name, base, base / name), registry)


def write(directory: Path, text: str) -> str:
    """Write it; return its sha256. Raises LoadError for a graph that would not be served, and changes nothing
    then."""
    temporary = directory / f".{GRAPH_FILE}"
    temporary.write_text(text)
    try:
        check_file(directory, temporary.name).graph.close()
        os.replace(temporary, directory / GRAPH_FILE)
    finally:
        temporary.unlink(missing_ok=True)
    return hashlib.sha256(text.encode()).hexdigest()
