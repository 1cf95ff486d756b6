"""EngineSettings: how the server treats its engine processes, whatever they do."""

from __future__ import annotations

from dataclasses import dataclass, field

from ovserve.engine.client.grammars.prover import GrammarLimits
from ovserve.engine.client.state import RestartPolicy


@dataclass(frozen=True)
class EngineSettings:
    """Times in seconds."""

    ready_timeout: float = 600.0  # for a process to load its model
    restart_wait: float = 30.0  # that a request waits for the next process
    stop_grace: float = 10.0  # between Stop and SIGKILL
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    grammars: GrammarLimits = field(default_factory=GrammarLimits)
