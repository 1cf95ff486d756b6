"""ServingSettings: how servables are loaded, reloaded and replaced."""

from __future__ import annotations

from dataclasses import dataclass, field

from ovserve.admission.limits import Limits
from ovserve.engine.client.settings import EngineSettings
from ovserve.serving.aliases import Aliases


@dataclass(frozen=True)
class ServingSettings:
    """Settings of all servables. `limits` and `cache_dir` are defaults for graphs that set none."""

    engines: EngineSettings = field(default_factory=EngineSettings)
    drain_seconds: float = 600.0  # how long a replaced version may finish its requests
    replace_first: bool = False  # end the old version before the new one loads
    limits: Limits = field(default_factory=Limits)
    cache_dir: str = ""  # cache of compiled models
    aliases: Aliases = field(default_factory=Aliases)
