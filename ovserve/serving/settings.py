"""ServingSettings: how servables are loaded, reloaded and replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ovserve.engine.admission.fair_queue import Limits
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.host.memory import Memory, memory
from ovserve.serving.aliases import Aliases

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
