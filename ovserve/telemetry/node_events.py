"""Counters of what calculators count with `cc.count`: by node and by the author's name of the event."""

from __future__ import annotations

import threading
from collections import Counter

# Each name is a time series for every scraper, so a client's text must not become one.
MAX_EVENTS = 100


class NodeEvents:
    """The counters of all nodes of one servable, kept across its reloads."""

    def __init__(self) -> None:
        self.values: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()  # calculators on executors count as well

    def add(self, node: str, event: str, n: int = 1) -> None:
        """Count `n` events. Raises ValueError for a negative number, and for a node's 101st name."""
        if n < 0:
            raise ValueError(f"event {event!r}: a counter cannot be decreased, got {n}")
        key = node, event
        with self._lock:
            if key not in self.values and sum(name == node for name, _ in self.values) >= MAX_EVENTS:
                raise ValueError(f"node {node!r} counts more than {MAX_EVENTS} kinds of events")
            self.values[key] += n
