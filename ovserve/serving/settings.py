"""ServingSettings: how servables are loaded, reloaded and replaced, as the command line says."""

from __future__ import annotations

from dataclasses import dataclass, field

from ovserve.admission.limits import Limits
from ovserve.engine.client.settings import EngineSettings


@dataclass(frozen=True)
class ServingSettings:
    """`limits` and `cache_dir` are for graphs that set none of their own."""

    engines: EngineSettings = field(default_factory=EngineSettings)
    drain_seconds: float = 600.0  # that a replaced version may take to finish what it has begun
    replace_first: bool = False  # end the old version before the new one loads
    limits: Limits = field(default_factory=Limits)
    cache_dir: str = ""  # of compiled models
