"""Where the wanted set of servables is written down. Read by `manager.py`, in a thread; `check.py` reads it
too.

A repository is one of three: a single graph from the command line, a directory of graphs, a configuration
file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ovserve.errors import LoadError
from ovserve.serving.spec import GRAPH_FILE, ServableSpec


@dataclass(frozen=True)
class Found:
    """Names are unique. `warnings` name what was written and has no effect."""

    specs: tuple[ServableSpec, ...]
    warnings: tuple[str, ...] = ()


class Repository(Protocol):
    def read(self) -> Found:
        """Raises LoadError when it is wrong as a whole; a wrong entry is a spec with a fault."""

    def digest(self) -> str:
        """Changes when `read` may find another set. Cheap: asked at every poll."""


@dataclass(frozen=True)
class SingleGraph:
    """--model_name and --model_path."""

    name: str
    path: Path

    def read(self) -> Found:
        return Found((ServableSpec.of_directory(self.name, self.path, origin="--model_path"),))

    def digest(self) -> str:
        return ""


@dataclass(frozen=True)
class GraphsDirectory:
    """--graphs_dir: one folder per servable, whose name it is."""

    path: Path

    def read(self) -> Found:
        root = self.path.absolute()
        try:
            folders = sorted(f for f in root.iterdir() if f.is_dir() and not f.name.startswith("."))
        except OSError as error:
            raise LoadError(f"cannot be read: {error.strerror}", file=str(root)) from error
        graphs = [f for f in folders if (f / GRAPH_FILE).is_file()]
        others = [f for f in folders if f not in graphs]
        return Found(
            tuple(ServableSpec.of_directory(f.name, f, origin=str(f)) for f in graphs),
            tuple(f"{f} has no {GRAPH_FILE} and is not served" for f in others),
        )

    def digest(self) -> str:
        try:
            return repr([spec.name for spec in self.read().specs])
        except LoadError as error:
            return str(error)
