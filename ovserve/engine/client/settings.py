"""EngineSettings: how the server treats its engine processes, of any kind."""

from __future__ import annotations

from dataclasses import dataclass, field

from ovserve.engine.client.grammars import GrammarLimits
from ovserve.engine.client.state import RestartPolicy


@dataclass(frozen=True)
class EngineSettings:
    """Settings of all engine processes. Times in seconds."""

    ready_timeout: float = 600.0  # for a process to load its model
    restart_wait: float = 30.0  # how long a request waits for the next process
    stop_grace: float = 10.0  # between Stop and SIGKILL
    keep_shared: bool = False  # the process of small models stays when the last of them is unloaded
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    grammars: GrammarLimits = field(default_factory=GrammarLimits)
