"""ServingSettings: how servables are loaded, reloaded and replaced, and their other names."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from ovserve.engine.admission.fair_queue import Limits
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.host.memory import Memory, memory
from ovserve.errors import InvalidArgument

ANY = "*"


@dataclass(frozen=True)
class Aliases:
    """Other names for servables, from --model_alias: clients ask for names that are built into them.

    Pairs of alias and name; an empty name is that of the only servable. With `*` an alias is a pattern; a
    servable's own name always comes first, then aliases in their order.
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
        if not self.pairs or name in (served := names()):
            return name
        only = next(iter(served)) if len(served) == 1 else ""
        for alias, target in self.pairs:
            if (target or only) and fnmatchcase(name, alias.replace("[", "[[]").replace("?", "[?]")):
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


@dataclass(frozen=True)
class IdleSettings:
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
