"""ServingSettings: how servables are loaded, reloaded and replaced, and their other names."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from ovserve.api import LATEST
from ovserve.engine.admission.fair_queue import Limits
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.host.memory import Memory, memory
from ovserve.errors import InvalidArgument
from ovserve.kinds.tensors.spec import TensorSpec
from ovserve.serving.status import GRAPH_VERSION

# The specification of a servable: a name and the files behind it.


GRAPH_FILE = "graph.pbtxt"


class AdapterOf(msgspec.Struct, frozen=True):
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


ANY = "*"


class Aliases(msgspec.Struct, frozen=True):
    """Other names for servables, from --model_alias: clients ask for names that are built into them.

    Pairs of alias and name; an empty name is that of the only servable. With `*` an alias is a pattern; a
    servable's own name always comes first, then aliases in their order. A name that is neither may have
    Ollama's tag, as `/api/tags` lists all.
    """

    pairs: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Aliases:
        """Parse ALIAS and ALIAS=NAME, separated by commas. Raises InvalidArgument."""
        pairs = []
        for item in filter(None, (part.strip() for part in text.split(","))):
            alias, equals, name = (part.strip() for part in item.partition("="))
            if not alias or (equals and not name):
                raise InvalidArgument(f"--model_alias: expected ALIAS or ALIAS=NAME, got {item!r}")
            pairs.append((alias, name))
        return cls(tuple(pairs))

    def target(self, name: str, names: Callable[[], Collection[str]]) -> str:
        """Return the servable that a name means, of those in `names()`; the name itself if no alias fits."""
        if not self.pairs and not name.endswith(LATEST):
            return name
        served, spellings = names(), (name, name.removesuffix(LATEST))
        if own := next((spelling for spelling in spellings if spelling in served), None):
            return own
        only = next(iter(served)) if len(served) == 1 else ""
        for alias, target in self.pairs:
            pattern = alias.replace("[", "[[]").replace("?", "[?]")
            if (target or only) and any(fnmatchcase(spelling, pattern) for spelling in spellings):
                return target or only
        return name

    def faults(self, served: Collection[str]) -> list[str]:
        """Return a sentence for each alias that means nothing while these are served."""
        messages = []
        for alias, name in self.pairs:
            if name and name not in served:
                messages.append(f"--model_alias: {alias}={name}: {name!r} is not served")
            elif not name and len(served) > 1:
                many = f"{len(served)} graphs are served, so it means none of them; write {alias}=NAME"
                messages.append(f"--model_alias: {alias}: {many}")
        return messages

    def listed(self, served: Collection[str]) -> list[tuple[str, str]]:
        """Return the aliases that are plain names, with what each means."""
        plain = [alias for alias, _ in self.pairs if ANY not in alias and alias not in served]
        targets = ((alias, self.target(alias, lambda: served)) for alias in dict.fromkeys(plain))
        return [(alias, name) for alias, name in targets if name in served]


Convert = Callable[[Path], Path]  # returns the directory with what a .gguf file is converted to


class IdleSettings(msgspec.Struct, frozen=True):
    """Settings of what stays loaded, see residency.py. 0: no limit, or never."""

    seconds: float = 0.0  # without a request, after which a group is unloaded
    max_groups: int = 0  # loaded at the same time, besides the permanent one
    max_bytes: int = 0  # of memory that their engines may hold together
    residence: float = 5.0  # seconds that a group keeps its place at least
    adapter_seconds: float = 300.0  # `seconds` of LoRA adapters if that is 0

    @property
    def enabled(self) -> bool:
        return bool(self.seconds or self.max_groups or self.max_bytes)


@dataclass(frozen=True)
class ServingSettings:
    """Settings of all servables. `limits` and `cache_dir` are defaults for graphs that set none."""

    engines: EngineSettings = field(default_factory=EngineSettings)
    drain_seconds: float = 600.0  # how long a replaced version may finish its requests
    replace_first: bool = False  # end the old version before the new one loads
    limits: Limits = field(default_factory=Limits)
    cache_dir: str = ""  # cache of compiled models
    aliases: Aliases = field(default_factory=Aliases)
    idle: IdleSettings = field(default_factory=IdleSettings)
    memory: Callable[[], Memory] = memory  # what is left, for loads
    convert: Convert | None = None  # None: nothing is converted
