"""An engine is measured when it has settled: what it compiles after its start must not count."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ovserve.engine.host.memory import cpu_seconds, is_runnable
from ovserve.tools.tuning import run
from ovserve.tools.tuning.run import settled

BUSY_SECONDS = 1.5  # of CPU time, after which it sleeps
SCRIPT = """
import time
print(flush=True)
while time.process_time() < {busy}: pass
time.sleep(600)
"""


@asynccontextmanager
async def process(busy: float) -> AsyncIterator[asyncio.subprocess.Process]:
    script = SCRIPT.format(busy=busy)
    made = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    try:
        assert made.stdout is not None
        assert await made.stdout.readline(), "it computes from now on"
        yield made
    finally:
        made.kill()
        await made.wait()


async def test_it_waits_until_a_process_is_idle() -> None:
    async with process(BUSY_SECONDS) as busy:
        assert await settled(busy.pid)
        used = cpu_seconds(busy.pid)
        assert used is not None
        assert used > BUSY_SECONDS * 0.9, "not before it had computed"


async def test_it_gives_up_on_one_that_never_rests_and_on_one_that_is_gone() -> None:
    async with process(1e9) as busy:
        assert not await settled(busy.pid, seconds=1.5)
    assert await settled(busy.pid)


async def test_a_process_that_waits_for_a_core_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    async with process(1e9) as busy:
        # As on a machine so busy that it gets no core during a look: the kernel has counted nothing yet.
        monkeypatch.setattr(run, "_wanted_seconds", lambda _: 1.0)
        assert is_runnable(busy.pid)
        assert not await settled(busy.pid, seconds=0.1)
        monkeypatch.undo()
    async with process(0) as idle:
        assert await settled(idle.pid)
        assert not is_runnable(idle.pid)
