"""Sandbox processes: what comes back from a call, and what happens when one fails."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ovserve.engine.protocol.frames import MAX_FRAME
from ovserve.errors import (
    INTERNAL_MESSAGE,
    Internal,
    InvalidArgument,
    PayloadTooLarge,
    Unavailable,
    UnsupportedParameter,
)
from ovserve.sandbox.bodies import Bodies
from ovserve.sandbox.messages import OutOfMemory, Undecodable
from ovserve.sandbox.pool import CallTimeout, Pool, ProcessEnded
from ovserve.sandbox.worker import MAX_PART
from tests.conftest import eventually
from tests.sandbox.work import (
    Fact,
    die,
    exploit,
    exploit_by_error,
    fact,
    fail,
    fill,
    hang,
    hang_in,
    refuse,
    refuse_oddly,
    reject,
    size_of,
    text,
    too_much,
    where,
)

INITIALIZER = "tests.sandbox.work:initialize"
MEMORY = 1 << 29


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    pool = Pool(INITIALIZER, seconds=60.0, memory=MEMORY, most=1)
    yield pool
    await pool.stop()


@pytest.fixture
async def hasty() -> AsyncIterator[Pool]:
    pool = Pool(INITIALIZER, seconds=0.5, memory=MEMORY, wait=1.0, process="slow process", purpose=" to hang")
    yield pool
    await pool.stop()


async def test_a_function_runs_in_another_process_which_is_kept(pool: Pool) -> None:
    first = await pool.call(where)
    assert first != os.getpid()
    assert await pool.call("tests.sandbox.work:where") == first
    assert pool.pids == [first]


async def test_an_error_for_the_client_comes_back_whole(pool: Pool) -> None:
    with pytest.raises(UnsupportedParameter, match=r"tools\[3\]: no") as caught:
        await pool.call(refuse)
    assert caught.value.param == "tools[3]"
    assert caught.value.details == {"value": 7}
    assert isinstance(caught.value, InvalidArgument)
    with pytest.raises(Undecodable, match="not like this"):
        await pool.call(reject)


async def test_a_fault_of_ours_is_internal_and_the_process_goes_on(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    first = await pool.call(where)
    with pytest.raises(Internal) as caught:
        await pool.call(fail)
    assert str(caught.value) == INTERNAL_MESSAGE, "a traceback is not for clients"
    assert "ZeroDivisionError" in caplog.text
    assert await pool.call(where) == first


@pytest.mark.parametrize("length", [0, MAX_PART, MAX_PART + 1, 2 * MAX_PART, 3 * MAX_PART - 1])
async def test_a_text_of_any_length_comes_back_whole(pool: Pool, length: int) -> None:
    assert await pool.call(text, length) == text(length)
    assert await pool.call(text, 3) == text(3)


async def test_bytes_of_any_size_keep_their_place(pool: Pool) -> None:
    for size in (0, 1, 70_000, 10 << 20):
        assert await pool.call(size_of, 7, b"x" * size, b"second") == (7, size, b"second")


async def test_memory_is_bounded(pool: Pool) -> None:
    assert await pool.call(fill, 1 << 20) == 1 << 20
    with pytest.raises(OutOfMemory, match="too much memory"):
        await pool.call(fill, 1 << 30)
    assert await pool.call(fill, 1 << 20) == 1 << 20


async def test_time_is_bounded(hasty: Pool) -> None:
    with pytest.raises(CallTimeout):
        await hasty.call(hang, 60.0)
    with pytest.raises(Undecodable, match="it took more than 0.5 s to decode"):
        await hasty.decode("tests.sandbox.work:hang", 60.0, returns=int)


async def test_a_process_that_does_not_run_is_replaced(hasty: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its call was the client's fault: it "took too long". Its own alarm ends one that does."""
    pid = await _patiently(hasty)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr("ovserve.sandbox.pool.GRACE_SECONDS", 0.0)
    call = asyncio.create_task(hasty.call(where))
    await asyncio.sleep(0)  # it has begun, with its deadline
    monkeypatch.undo()
    assert await call != pid


async def _patiently(pool: Pool) -> int:
    """Its time includes the start of a process, on a busy machine."""
    for _ in range(100):
        try:
            return await pool.call(where)
        except (CallTimeout, Unavailable):
            continue
    raise AssertionError("no process has answered")


async def test_no_one_waits_longer_than_the_bound(hasty: Pool) -> None:
    results = await asyncio.gather(*(hasty.call(hang, 60.0) for _ in range(12)), return_exceptions=True)
    assert {type(result) for result in results} == {CallTimeout, Unavailable}
    refused = next(result for result in results if isinstance(result, Unavailable))
    assert str(refused) == "no slow process was free to hang for 1 s"


async def test_a_process_that_dies_is_replaced(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ProcessEnded, match="it ended its process twice, with -11"):
        await pool.call(die)
    assert caplog.text.count("ended with -11 over tests.sandbox.work:die") == 2
    with pytest.raises(Undecodable, match="the decoder process ended while decoding it"):
        await pool.decode("tests.sandbox.work:die", returns=int)
    assert await pool.call(where) != os.getpid()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_a_killed_process_is_not_noticed(pool: Pool, number: int) -> None:
    for _ in range(3):
        before = await pool.call(where)
        os.kill(before, number)
        assert await pool.call(where) != before


async def test_processes_that_are_killed_while_idle_are_replaced() -> None:
    """As the kernel does when memory is short: the second try does not take the other one that has ended."""
    pool = Pool(INITIALIZER, seconds=60.0, memory=MEMORY, most=2)
    try:
        both = {*await asyncio.gather(pool.call(where), pool.call(where))}
        assert len(both) == 2
        for pid in both:
            os.kill(pid, signal.SIGKILL)
        assert await pool.call(where) not in both
    finally:
        await pool.stop()


async def test_a_process_killed_over_a_call_is_replaced_and_the_call_repeated(
    pool: Pool, tmp_path: str
) -> None:
    calling = asyncio.create_task(pool.call(hang_in, str(tmp_path)))
    await eventually(lambda: os.listdir(tmp_path))
    (first,) = map(int, os.listdir(tmp_path))
    os.kill(first, signal.SIGKILL)
    assert await calling != first


async def test_one_that_ended_is_replaced_before_it_is_needed(pool: Pool) -> None:
    before = await pool.call(where)
    os.kill(before, signal.SIGKILL)
    await eventually(lambda: pool.pids not in ([before], [], [0]))


async def test_a_client_that_leaves_frees_its_place(pool: Pool) -> None:
    first = await pool.call(where)
    leaving = asyncio.create_task(pool.call(hang, 59.0))
    await asyncio.sleep(0.1)
    leaving.cancel()
    await asyncio.wait({leaving})
    assert await pool.call(where) != first, "the one at work was ended: its answer is for no one"


async def test_a_client_that_leaves_keeps_the_process_of_a_short_call(pool: Pool) -> None:
    first = await pool.call(where)
    leaving = [asyncio.create_task(pool.call(text, 9)) for _ in range(20)]
    await asyncio.sleep(0)
    for task in leaving:
        task.cancel()
    assert await pool.call(where) == first, "not the answer to one that left"


async def test_a_client_that_leaves_while_its_call_is_sent_leaves_no_half(pool: Pool) -> None:
    first = await pool.call(where)
    os.kill(first, signal.SIGSTOP)
    leaving = asyncio.create_task(pool.call(size_of, 1, bytes(50 << 20), b""))
    await asyncio.sleep(0.1)
    leaving.cancel()
    await asyncio.wait({leaving})
    assert await pool.call(where) != first


async def test_a_process_that_comes_as_its_client_leaves_is_not_lost(pool: Pool) -> None:
    first = await pool.call(where)
    for steps in range(8):  # of the loop, in one of which the process has been given to the client
        holding = asyncio.create_task(pool.call(hang, 0.01))
        await asyncio.sleep(0)
        leaving = asyncio.create_task(pool.call(text, 9))
        await asyncio.wait({holding})
        for _ in range(steps):
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait({leaving})
        assert await pool.call(where) == first


async def test_stop_ends_processes_and_those_who_wait(pool: Pool) -> None:
    pid = await pool.call(where)
    running = [asyncio.create_task(pool.call(hang, 59.0)) for _ in range(3)]
    await asyncio.sleep(0)
    await pool.stop()
    results = await asyncio.gather(*running, return_exceptions=True)
    assert {type(result) for result in results} <= {ProcessEnded, Unavailable}
    await eventually(lambda: not os.path.exists(f"/proc/{pid}"))
    with pytest.raises(Unavailable, match="the server is stopping"):
        await pool.call(where)


@pytest.fixture
async def bodies() -> AsyncIterator[Bodies]:
    bodies = Bodies(seconds=60.0, memory=MEMORY)
    yield bodies
    await bodies.stop()


async def test_what_a_large_body_cannot_have_is_for_the_client(bodies: Bodies) -> None:
    with pytest.raises(PayloadTooLarge, match="the body cannot be decoded: it needs too much memory"):
        await bodies.run(True, fill, 1 << 30)
    with pytest.raises(PayloadTooLarge, match="ended its process twice, with -11"):
        await bodies.run(True, die)
    assert await bodies.run(True, where) != os.getpid() == await bodies.run(False, where)


async def test_a_large_body_has_its_time() -> None:
    hasty = Bodies(seconds=1.0, memory=MEMORY)
    with pytest.raises(Unavailable, match="the body was not decoded within 1 s"):
        await hasty.run(True, hang, 60.0)
    await hasty.stop()


async def test_a_method_is_not_called_in_another_process(bodies: Bodies) -> None:
    for large in (True, False):
        with pytest.raises(TypeError, match="cannot be called in another process"):
            await bodies.run(large, "".join, ["a"])


async def test_no_answer_makes_the_server_run_code(
    pool: Pool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As it could come from a process that a broken decoder has taken over."""
    there = str(tmp_path / "made")
    with pytest.raises(Internal):
        await pool.call(exploit, there)
    assert "is no class of plain data" in caplog.text
    with pytest.raises(Internal):
        await pool.call(exploit, there, returns=Fact)
    with pytest.raises(UnsupportedParameter) as caught:
        await pool.call(exploit_by_error, there)
    assert "Exploit" in (caught.value.details or {})["value"]
    assert not os.listdir(tmp_path)


async def test_results_of_a_type(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    assert await pool.call(fact, "a", returns=Fact) == Fact("a", (1, 2))
    assert await pool.call(fact, "a") == Fact("a", (1, 2))
    assert await pool.call(text, 3, returns=str) == text(3)
    for function, *arguments in ((fact, "a"), (text, 3)):
        with pytest.raises(Internal):
            await pool.call(function, *arguments, returns=int)
    assert "with what is not data" in caplog.text
    with pytest.raises(Undecodable, match="it is broken"):
        await pool.decode("tests.sandbox.work:fact", "a", returns=int)
    assert await pool.call(fact, "b", returns=Fact) == Fact("b", (1, 2)), "in another process"


async def test_an_error_that_msgpack_cannot_hold_comes_back_as_text(pool: Pool) -> None:
    with pytest.raises(UnsupportedParameter, match="half: ") as caught:
        await pool.call(refuse_oddly)
    assert str(2**70) in str(caught.value.details)


async def test_too_much_for_a_frame_is_the_clients_error(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    roomy = Pool(INITIALIZER, seconds=60.0, memory=4 << 30)
    try:
        with pytest.raises(PayloadTooLarge, match=f"over the limit of {MAX_FRAME}"):
            await roomy.call(too_much)
    finally:
        await roomy.stop()
    monkeypatch.setattr("ovserve.engine.protocol.frames.MAX_FRAME", 1000)
    for argument in (b"x" * 1000, "x" * 1000):
        with pytest.raises(PayloadTooLarge, match="over the limit of 1000"):
            await pool.call(size_of, 1, argument, b"")
    bodies = Bodies()
    body = b'{"messages": [' + b"1," * 40_000 + b"1]}"
    try:
        with pytest.raises(PayloadTooLarge, match="over the limit of 1000"):
            await bodies.admit(body)
    finally:
        await bodies.stop()
