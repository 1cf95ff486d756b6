"""Triton's log settings, mapped to this server's one log level.

log_verbose_level above 0 is DEBUG. Otherwise the least severe enabled one of log_info, log_warning and
log_error decides. The destination and format of the log are fixed at start.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ovserve.api.kserve import Parameter, as_whole
from ovserve.errors import InvalidArgument

VERBOSE = "log_verbose_level"
_LEVELS = {"log_info": logging.INFO, "log_warning": logging.WARNING, "log_error": logging.ERROR}
_FIXED = {"log_file": "--log_path", "log_format": "--log_format"}

log = logging.getLogger(__name__)


def log_settings() -> dict[str, Parameter]:
    level = logging.getLogger().getEffectiveLevel()
    return {
        **{name: level <= severity for name, severity in _LEVELS.items()},
        VERBOSE: int(level <= logging.DEBUG),
    }


def change_log_settings(changes: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Apply changes; return the active settings. Raises InvalidArgument naming the setting; nothing has
    changed then."""
    wanted = log_settings()
    for name, value in changes.items():
        if name in _FIXED:
            raise InvalidArgument(f"settings.{name}: fixed at start, by {_FIXED[name]}", param=name)
        if name not in wanted:
            raise InvalidArgument(
                f"settings: {name!r} is not known; known: {', '.join(wanted)}", param="settings"
            )
        if name == VERBOSE:
            if (number := as_whole(value)) is None or number < 0:
                raise InvalidArgument(f"settings.{name}: expected 0 or more, got {value!r}", param=name)
            value = number
        elif not isinstance(value, bool):
            raise InvalidArgument(f"settings.{name}: expected true or false, got {value!r}", param=name)
        wanted[name] = value
    if not wanted["log_error"]:
        raise InvalidArgument("settings.log_error: errors are always logged", param="log_error")
    if changes:
        level = logging.DEBUG if wanted[VERBOSE] else min(s for n, s in _LEVELS.items() if wanted[n])
        logging.getLogger().setLevel(level)
        log.warning("log level is now %s, on request", logging.getLevelName(level))
    return log_settings()
