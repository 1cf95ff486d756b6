"""The side packets of one run: those given at its start, and those that its nodes make."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ovserve.graph.runtime.streams import wake


class SidePackets:
    __slots__ = ("_values", "_waiters")

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._values = dict(given)
        self._waiters: dict[str, asyncio.Future[None]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    async def wait(self, name: str) -> Any:
        """Return its value, once a node has made it."""
        while name not in self._values:
            waiter = self._waiters.get(name)
            if waiter is None:
                waiter = self._waiters[name] = asyncio.get_running_loop().create_future()
            await asyncio.shield(waiter)
        return self._values[name]

    def publish(self, name: str, value: Any) -> None:
        self._values[name] = value
        if (waiter := self._waiters.pop(name, None)) is not None:
            wake(waiter)
