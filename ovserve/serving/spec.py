"""The specification of a servable: a name and the files behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ovserve.kinds.tensors.spec import TensorSpec
from ovserve.serving.status import GRAPH_VERSION

GRAPH_FILE = "graph.pbtxt"


@dataclass(frozen=True)
class AdapterOf:
    """A LoRA adapter of the model of another servable, `parent`. `path` is absolute."""

    parent: str
    path: Path
    alpha: float = 1.0
    node: str = ""  # whose options list it; empty: it was loaded by API, for the only model


@dataclass(frozen=True)
class ServableSpec:
    """One servable as the operator wants it. Equal specs name the same files; their content is
    compared by `fingerprint.py`.

    `base` is the directory that relative paths in the graph start from (OVMS's base_path); `graph` is the
    graph file itself. `subconfig` is named or found next to the graph. `origin` says where the entry was
    read, for messages. A `fault` is why the entry cannot be served whatever its files hold; it becomes the
    reason of its state. A `plain` model has no graph: each of its versions is a specification of its own,
    with the `model` unless it has a fault. A `text` is the graph itself, made in memory;
    `graph` then only says where it would be, and no code is loaded from `base`. With an `adapter` it is the
    same graph as another servable's, with the adapter fused into its model.
    """

    name: str
    base: Path
    graph: Path
    subconfig: Path | None = None
    origin: str = field(default="", compare=False)
    fault: str = ""
    model: TensorSpec | None = None
    version: int = GRAPH_VERSION
    plain: bool = False
    text: str = ""
    adapter: AdapterOf | None = None
    group: str = ""  # of graphs that are loaded and unloaded together; empty: it is one by itself
    warmup: Path | None = None  # requests to answer before it is served; None: warmup.jsonl, if there is one
    idle_seconds: float | None = None  # without a request, after which it is unloaded; None: the server's
    warnings: tuple[str, ...] = field(default=(), compare=False)  # about files that are not served

    @property
    def key(self) -> str:
        """Return what distinguishes it from all others: the name, and the version of a plain model."""
        return f"{self.name}\0{self.version}" if self.plain else self.name

    @property
    def on_demand(self) -> bool:
        """Return whether the first request loads it: an adapter that a graph lists."""
        return self.adapter is not None and bool(self.adapter.node)

    @property
    def label(self) -> str:
        """Return the name for people."""
        return f"{self.name} version {self.version}" if self.plain else self.name

    @property
    def wrong_name(self) -> str:
        """Return why it cannot be served under its name, which is part of API paths; "" if it can."""
        if not self.name:
            return "name: expected at least one character"
        if any(part in ("", ".", "..") for part in self.name.split("/")) or not self.name.isprintable():
            rule = "expected printable characters, and neither nothing nor '.' nor '..' between slashes"
            return f"name: {rule}; got {self.name!r}"
        return ""

    @classmethod
    def of_directory(cls, name: str, directory: Path, *, origin: str = "") -> ServableSpec:
        """Return the spec of the usual layout: graph.pbtxt in a directory; a relative path is made absolute
        here."""
        base = directory.absolute()
        return cls(name, base, base / GRAPH_FILE, origin=origin)
