"""An engine is measured when it has settled: what it compiles after its start must not count."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ovserve.engine.host.memory import cpu_seconds
from ovserve.tools.tuning.arena import settled

BUSY_SECONDS = 1.5  # of CPU time, after which it sleeps
SCRIPT = "import time\nwhile time.process_time() < {busy}: pass\nprint(flush=True)\ntime.sleep(600)"


@asynccontextmanager
async def process(busy: float) -> AsyncIterator[asyncio.subprocess.Process]:
    script = SCRIPT.format(busy=busy)
    made = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    try:
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
