"""The sources of the desired set of servables. Reading one blocks, so it runs in a thread.

A repository is one of three: a single graph of the command line, a directory of graphs, a configuration
file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ovserve.errors import LoadError
from ovserve.serving.config.models import looks_plain, model_specs, nothing_served
from ovserve.serving.config.subconfig import RepositoryContent as RepositoryContent
from ovserve.serving.config.subconfig import graph_spec, with_models
from ovserve.serving.spec import GRAPH_FILE, ServableSpec


class Repository(Protocol):
    def read(self) -> RepositoryContent:
        """Return the servables. Raises LoadError when the whole is wrong; a wrong entry is a spec with a
        fault."""

    def digest(self) -> str:
        """Return a digest that changes when `read` may find another set. It is cheap, because every poll
        calls it."""


@dataclass(frozen=True)
class SingleGraph:
    """The one graph of a command line, in a directory or made in memory; or a plain model, with the `entry`
    that it would have in a configuration."""

    spec: ServableSpec
    entry: Mapping[str, Any] = field(default_factory=dict)

    def read(self) -> RepositoryContent:
        base = self.spec.base.absolute()
        if self.spec.text:
            return RepositoryContent((self.spec,))
        if looks_plain(base):
            return with_models([model_specs(self.spec.name, base, self.entry, "--model_path")], [])
        return with_models([[graph_spec(self.spec.name, base, self.spec.origin)]], [])

    def digest(self) -> str:
        return repr([(spec.key, spec.base, spec.fault) for spec in self.read().specs])


@dataclass(frozen=True)
class GraphsDirectory:
    """The graphs and plain models of --graphs_dir: one folder per servable, with its name."""

    path: Path

    def read(self) -> RepositoryContent:
        root = self.path.absolute()
        try:
            folders = sorted(f for f in root.iterdir() if f.is_dir() and not f.name.startswith("."))
        except OSError as error:
            raise LoadError(f"cannot be read: {error.strerror}", file=str(root)) from error
        graphs = [f for f in folders if (f / GRAPH_FILE).is_file()]
        plain = [f for f in folders if f not in graphs and looks_plain(f)]
        others = [f for f in folders if f not in graphs and f not in plain]
        entries = [[graph_spec(f.name, f, str(f))] for f in graphs]
        entries += [model_specs(f.name, f, {}, str(f)) for f in plain]
        return with_models(entries, [f"not served: {nothing_served(f)}" for f in others])

    def digest(self) -> str:
        try:
            return repr([(spec.key, spec.fault) for spec in self.read().specs])
        except LoadError as error:
            return str(error)
