"""The processes for large bodies: what comes back, and what happens when one fails."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from ovserve.errors import (
    INTERNAL_MESSAGE,
    Internal,
    InvalidArgument,
    PayloadTooLarge,
    Unavailable,
    UnsupportedParameter,
)
from ovserve.sandbox.bodies.bodies import BodyPool
from tests.conftest import eventually
from tests.sandbox.bodies.work import die, fail, fill, hang, refuse, where


@pytest.fixture
async def pool() -> AsyncIterator[BodyPool]:
    made = BodyPool(seconds=5.0, memory=1 << 29, most=1)
    yield made
    await made.stop()


async def test_a_function_runs_in_another_process_which_is_kept(pool: BodyPool) -> None:
    first = await pool.call(where)
    assert first != os.getpid()
    assert await pool.call(where) == first


async def test_an_error_for_the_client_comes_back_whole(pool: BodyPool) -> None:
    with pytest.raises(UnsupportedParameter, match=r"tools\[3\]: no") as caught:
        await pool.call(refuse)
    assert caught.value.param == "tools[3]"
    assert caught.value.details == {"value": 7}
    assert isinstance(caught.value, InvalidArgument)


async def test_a_fault_of_ours_is_internal_and_the_process_goes_on(
    pool: BodyPool, caplog: pytest.LogCaptureFixture
) -> None:
    first = await pool.call(where)
    with pytest.raises(Internal) as caught:
        await pool.call(fail)
    assert str(caught.value) == INTERNAL_MESSAGE, "a traceback is not for clients"
    assert "ZeroDivisionError" in caplog.text
    assert await pool.call(where) == first


async def test_memory_is_bounded(pool: BodyPool) -> None:
    assert await pool.call(fill, 1 << 20) == 1 << 20
    with pytest.raises(PayloadTooLarge, match="too much memory"):
        await pool.call(fill, 1 << 30)
    assert await pool.call(fill, 1 << 20) == 1 << 20


async def test_time_is_bounded(pool: BodyPool) -> None:
    with pytest.raises(Unavailable, match="within 5 s"):
        await pool.call(hang, 60.0)
    assert await pool.call(where) != os.getpid(), "another process has taken its place"


async def test_a_process_that_dies_is_replaced(pool: BodyPool) -> None:
    with pytest.raises(PayloadTooLarge, match="ended its process twice, with -11"):
        await pool.call(die)
    assert await pool.call(where) != os.getpid()


async def test_processes_that_are_killed_while_idle_are_replaced() -> None:
    """As the kernel does when memory is short."""
    pool = BodyPool(memory=1 << 29, most=2)
    both = set(await asyncio.gather(pool.call(where), pool.call(where)))
    assert len(both) == 2
    for pid in both:
        os.kill(pid, signal.SIGKILL)
    assert await pool.call(where) not in both
    await pool.stop()


async def test_a_client_that_leaves_frees_its_place(pool: BodyPool) -> None:
    first = await pool.call(where)
    asking = asyncio.create_task(pool.call(hang, 4.9))
    await asyncio.sleep(0.1)
    asking.cancel()
    await asyncio.wait({asking})
    assert await pool.call(where) != first, "the one at work was ended: its answer is for no one"


async def test_no_process_is_left(pool: BodyPool) -> None:
    pid = await pool.call(where)
    await pool.stop()
    await eventually(lambda: not os.path.exists(f"/proc/{pid}"))
