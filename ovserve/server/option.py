"""One option of `ovserve serve`: a field of Settings with its help, group, choices and other names."""

from __future__ import annotations

from dataclasses import field
from typing import Any

GROUPS = (SERVED, LISTEN, SECURITY, LIMITS, PROCESS, IDLE, LOGS, METRICS, RESPONSES, BATCHES, CONSOLE) = (
    "What is served",
    "Where it listens",
    "Security",
    "Limits",
    "Start and stop",
    "Idle models",
    "Logs",
    "Metrics",
    "Stored responses",
    "Batches",
    "Console",
)


def option(
    default: Any,
    help_: str,
    *,
    group: str = SERVED,
    choices: tuple[str, ...] = (),
    environment: tuple[str, ...] = (),
    flag: bool = True,
    aliases: tuple[str, ...] = (),
) -> Any:
    """A Settings field. The type of `default` is the option's: str, int, float or bool.

    `environment` are names besides OVSERVE_<NAME>, such as OVMS's. With `flag=False` only the environment
    sets it, which is for secrets: a command line can be read by every user of the machine. `aliases` are
    flags besides --<name>, where OVMS has another word.
    """
    metadata = {"help": help_, "group": group, "choices": choices, "environment": environment, "flag": flag}
    metadata["aliases"] = aliases
    return field(default=default, metadata=metadata, repr=flag)
