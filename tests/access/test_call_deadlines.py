"""The deadlines of calls: one timer for all of them, whatever their order."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from ovserve.engine.admission.controller import Deadlines
from tests.conftest import eventually


class Call:
    """Notes when it expires. An admitted call needs an engine behind it; its deadline does not."""

    def __init__(self, expired: list[Any], name: str) -> None:
        self._expired, self._name = expired, name

    def expire(self) -> None:
        self._expired.append((self._name, time.monotonic()))


async def test_each_call_expires_at_its_own_time_and_one_that_ended_does_not() -> None:
    deadlines, expired, now = Deadlines(), list[Any](), time.monotonic()
    due = {"late": now + 0.3, "early": now + 0.1, "ended": now + 0.2, "past": now - 1, "same": now + 0.1}
    calls: dict[str, Any] = {name: Call(expired, name) for name in due}
    for name, at in due.items():
        deadlines.set(calls[name], at)
    deadlines.remove(calls["ended"])
    deadlines.remove(calls["ended"])
    await eventually(lambda: len(expired) == 4)
    assert [name for name, _ in expired] == ["past", "early", "same", "late"]
    assert all(at >= due[name] - 0.005 for name, at in expired), "none before its time"
    await asyncio.sleep(0.05)
    assert len(expired) == 4
    assert deadlines._timer is None, "no timer without calls"
    again: Any = Call(expired, "again")
    deadlines.set(again, time.monotonic() + 0.05)
    await eventually(lambda: len(expired) == 5)
