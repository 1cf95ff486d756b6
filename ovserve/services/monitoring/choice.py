"""The choice among metric families, for `--metrics_list` and the monitoring section of config.json."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from ovserve.errors import InvalidArgument
from ovserve.services.monitoring.families import ALL, NAMES


def choose(names: Sequence[str] | None) -> frozenset[str]:
    """Return the families to show: the named ones; all without a list. Raises InvalidArgument for unknown
    names."""
    if names is None:
        return NAMES
    for name in names:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise InvalidArgument(f"{name!r} is not a known metric family{hint}", param="metrics_list")
    return frozenset(names)


def parse_list(text: str) -> frozenset[str]:
    """Parse names separated by commas for `choose`; "all" means no list."""
    return choose(None if text == ALL else [name.strip() for name in text.split(",") if name.strip()])
