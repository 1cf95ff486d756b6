"""Who is next when the engine is full: fair among callers, short before long, nobody for ever last.

Used by `gate.py`, and only while requests wait; an engine with room costs nothing here. Callers share by the
tokens they were given since the queue began (a virtual token counter, Sheng et al. 2024): the caller who got
least is next, so a flood from one key does not starve another. A caller who comes later starts at the least
of those who wait, not at zero, or it would have a past to catch up. Among the requests of one caller the
smallest prompt is next, so a title or a tag does not wait behind 30,000 tokens. Its weight shrinks with the
wait, and is nothing after half of the time it may wait.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


@dataclass(eq=False)
class Waiter:
    """A request that waits; `turn` is done when it may go on."""

    caller: str
    tokens: int  # of its prompt, estimated
    choices: int  # the engine would hold for it
    arrived: float  # seconds, time.monotonic()
    admitted: bool = False  # it has its turn
    turn: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class FairQueue:
    def __init__(self, patience: float) -> None:
        """`patience`: seconds a request may wait."""
        self._patience = patience
        self._waiting: dict[str, list[Waiter]] = {}  # by caller, none empty
        self._given: dict[str, float] = {}  # tokens by caller, since the queue was empty last
        self._length = 0
        self.tokens = 0

    def __len__(self) -> int:
        return self._length

    def add(self, waiter: Waiter) -> None:
        if waiter.caller not in self._waiting:
            least = min((self._given[caller] for caller in self._waiting), default=0.0)
            self._given[waiter.caller] = max(self._given.get(waiter.caller, 0.0), least)
        self._waiting.setdefault(waiter.caller, []).append(waiter)
        self._length += 1
        self.tokens += waiter.tokens

    def next(self, now: float) -> Waiter:
        """Who is next; still in the queue. There must be one."""
        caller = min(self._waiting, key=self._given.__getitem__)
        return min(self._waiting[caller], key=lambda waiter: self._weight(waiter, now))

    def take(self, waiter: Waiter, tokens: float) -> None:
        """It has its turn; `tokens` is what the turn will cost."""
        self._given[waiter.caller] += tokens
        waiter.admitted = True
        self.remove(waiter)

    def remove(self, waiter: Waiter) -> None:
        """It left, or has its turn; no effect if it is not here."""
        mine = self._waiting.get(waiter.caller, [])
        if waiter not in mine:
            return
        mine.remove(waiter)
        self._length -= 1
        self.tokens -= waiter.tokens
        if not mine:
            del self._waiting[waiter.caller]
        if not self._waiting:
            self._given.clear()

    def _weight(self, waiter: Waiter, now: float) -> tuple[float, float]:
        waited = (now - waiter.arrived) / (self._patience / 2)
        return waiter.tokens * max(0.0, 1 - waited), waiter.arrived
