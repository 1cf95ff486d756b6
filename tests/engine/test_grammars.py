"""Proving grammars: bad ones, slow ones, deadly ones; once for many; and never to a neighbour's harm. The
process that proves is real, its compiler scripted."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from ovserve.engine.client.grammars import GrammarLimits
from ovserve.engine.client.text import TextClient
from ovserve.errors import InvalidArgument, Unavailable
from ovserve.llm.grammar.constraint import Constraint, constrain, regex
from tests.conftest import eventually
from tests.engine.conftest import Script, Start, is_running, kill_engine, reaches, read_all, request


def grammar(pattern: str) -> Constraint:
    return constrain(regex(pattern), "guided_regex")


async def answer(client: TextClient, pattern: str, **sampling: Any) -> str:
    text, _ = await read_all(await client.generate(request(constraint=grammar(pattern), **sampling)))
    return text


async def test_a_second_request_compiles_nothing(start: Start, script: Script) -> None:
    client = await start(script({"text": "yes"}))
    assert client.grammars.pid == 0, "no process before there is a grammar"
    assert await answer(client, "yes") == "yes"
    pid = client.grammars.pid
    for _ in range(3):
        assert await answer(client, "yes") == "yes"
    assert (client.grammars.compiles, client.grammars.pid) == (1, pid)
    assert await answer(client, "no|yes") == "yes"
    assert client.grammars.compiles == 2


async def test_those_who_ask_at_once_share_a_proof(start: Start, script: Script) -> None:
    client = await start(script(grammars=[{"match": "slow", "seconds": 0.2}]))
    asked = [asyncio.create_task(answer(client, "slow")) for _ in range(8)]
    await eventually(lambda: client.grammars.compiles == 1)
    asked[0].cancel()  # one who leaves takes the proof from nobody
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert results[1:] == ["ok."] * 7
    assert client.grammars.compiles == 1


async def test_a_bad_grammar_is_refused_in_the_compilers_words(start: Start, script: Script) -> None:
    client = await start(script(grammars=[{"match": "banana", "refuse": 'Unsupported type "banana"'}]))
    for _ in range(3):
        with pytest.raises(InvalidArgument, match='Unsupported type "banana"') as caught:
            await answer(client, "banana")
        assert caught.value.param == "guided_regex"
    assert client.grammars.compiles == 1, "the verdict is kept"
    assert client.stats().requests == 0, "it never reached the engine"


ENDLESS = {"match": "endless", "cpu_seconds": 60}


async def test_a_grammar_over_its_cpu_time_is_refused(start: Start, script: Script) -> None:
    limits = GrammarLimits(seconds=0.4, quick_seconds=0.1)
    client = await start(script({"text": "x"}, grammars=[ENDLESS]), grammar_limits=limits)
    assert await answer(client, "fine") == "x"
    pid = client.grammars.pid
    with pytest.raises(InvalidArgument, match=r"more than 0\.4 s of CPU time") as caught:
        await answer(client, "endless")
    assert caught.value.param == "guided_regex"
    assert not is_running(pid), "what computes for ever is ended by the kernel"
    assert client.grammars.compiles == 3, "both stages"
    assert await answer(client, "another") == "x", "the next has a process of its own"


async def test_running_out_of_cpu_time_is_remembered_for_a_while(start: Start, script: Script) -> None:
    """A client that comes back at once costs nothing. On another day the machine is faster."""
    limits = GrammarLimits(seconds=0.2, quick_seconds=0.1, kept_seconds=2.0)
    client = await start(script({"text": "x"}, grammars=[ENDLESS]), grammar_limits=limits)
    for _ in range(3):
        with pytest.raises(InvalidArgument, match="CPU time"):
            await answer(client, "endless")
    assert client.grammars.compiles == 2, "both stages, once"
    await asyncio.sleep(limits.kept_seconds)
    script({"text": "x"})  # the next process reads it
    assert await answer(client, "endless") == "x"
    assert await answer(client, "endless") == "x"
    assert client.grammars.compiles == 3


async def test_wall_time_alone_refuses_nothing(start: Start, script: Script) -> None:
    """A process that gets no CPU time for many times the limit, as on a machine with too much to do."""
    limits = GrammarLimits(seconds=0.2, quick_seconds=0.2)
    client = await start(
        script({"text": "x"}, grammars=[{"match": "starved", "seconds": 1.0}]), grammar_limits=limits
    )
    assert await answer(client, "starved") == "x"
    assert client.grammars.compiles == 1


async def test_who_has_waited_too_long_is_told_to_come_later(start: Start, script: Script) -> None:
    limits = GrammarLimits(wait_seconds=0.1)
    client = await start(
        script({"text": "x"}, grammars=[{"match": "starved", "seconds": 4}]), grammar_limits=limits
    )
    with pytest.raises(Unavailable, match="machine is busy") as caught:
        await answer(client, "starved")
    assert caught.value.retry_after
    await eventually(lambda: not client.grammars._trials)
    assert await answer(client, "starved") == "x"
    assert client.grammars.compiles == 1, "what was asked for went on meanwhile"


async def test_a_grammar_that_all_have_left_before_its_turn_is_dropped(start: Start, script: Script) -> None:
    client = await start(script({"text": "x"}, grammars=[{"match": "slow", "seconds": 2}]))
    first = asyncio.create_task(answer(client, "slow"))
    await eventually(lambda: client.grammars.compiles == 1)
    left = [asyncio.create_task(answer(client, f"slow{n % 4}")) for n in range(8)]
    shared = asyncio.create_task(answer(client, "slow0"))
    await eventually(lambda: len(client.grammars._trials) == 5)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    assert await answer(client, "fine") == "x"
    assert [await first, await shared] == ["x", "x"]
    assert client.grammars.compiles == 3, "first, shared and fine"
    assert await answer(client, "slow1") == "x", "one that comes back has its own trial"


async def test_slow_grammars_delay_slow_ones_only(start: Start, script: Script) -> None:
    """Whoever sends one after the other that computes for ever holds up nobody's ordinary grammar."""
    limits = GrammarLimits(seconds=20.0, quick_seconds=0.1, slow_waiting=2)
    client = await start(script({"text": "x"}, grammars=[ENDLESS]), grammar_limits=limits)
    bombs = [asyncio.create_task(answer(client, f"endless{n}")) for n in range(4)]
    await eventually(lambda: sum(bomb.done() for bomb in bombs) == 2, 60)
    refused = [bomb.exception() for bomb in bombs if bomb.done()]
    assert all(isinstance(error, Unavailable) and error.retry_after for error in refused)
    assert await answer(client, "fine") == "x"
    assert sum(bomb.done() for bomb in bombs) == 2, "the slow ones still compute"
    await client.stop()
    assert all(isinstance(end, Unavailable) for end in await asyncio.gather(*bombs, return_exceptions=True))


async def test_a_stopped_process_is_replaced(start: Start, script: Script) -> None:
    client = await start(script({"text": "x"}), grammar_limits=GrammarLimits(stuck_seconds=4.0))
    await answer(client, "one")
    os.kill(stopped := client.grammars.pid, signal.SIGSTOP)
    assert await answer(client, "two") == "x"
    assert not is_running(stopped)


async def test_a_grammar_that_takes_much_memory_is_refused(start: Start, script: Script) -> None:
    """And costs its own process: the engine never sees it, and the next grammar has another process."""
    greedy = {"match": "greedy", "take_bytes": 4 << 30}
    large = {"match": "large", "take_bytes": 200 << 20}
    client = await start(script({"text": "x"}, grammars=[greedy, large]))
    with pytest.raises(InvalidArgument, match=r"crashes on it|too much memory"):
        await answer(client, "greedy")
    assert await answer(client, "large") == "x"
    grown = client.grammars.pid
    await eventually(lambda: not is_running(grown))
    assert client._compiled._memory > 100 << 20, "it counts for what the engine keeps"
    assert await answer(client, "fine") == "x"


async def test_a_grammar_that_kills_the_compiler_is_refused(start: Start, script: Script) -> None:
    client = await start(
        script({"repeat": 0, "step_seconds": 0.01}, grammars=[{"match": "deadly", "exit": True}])
    )
    stream = await client.generate(request())
    await stream.next()
    engine = client.pid
    with pytest.raises(InvalidArgument, match="crashes on it"):
        await answer(client, "deadly")
    assert (await stream.next()).text, "a neighbour's answer goes on"
    assert client.pid == engine
    stream.abort_if_running()


async def test_a_killed_process_is_replaced(start: Start, script: Script) -> None:
    client = await start(script())
    await answer(client, "one")
    os.kill(client.grammars.pid, signal.SIGKILL)
    assert await answer(client, "two") == "ok."


async def test_a_new_engine_compiles_again_without_a_proof(start: Start, script: Script) -> None:
    client = await start(script())
    await answer(client, "one")
    await kill_engine(client)
    await reaches(client, "ready")
    assert await answer(client, "one") == "ok."
    assert client.grammars.compiles == 1


async def test_a_crowd_of_new_grammars_is_told_to_come_later(start: Start, script: Script) -> None:
    client = await start(
        script(grammars=[{"match": "slow", "seconds": 30}]), grammar_limits=GrammarLimits(waiting=1)
    )
    first = asyncio.create_task(answer(client, "slow"))
    await eventually(lambda: client.grammars.compiles == 1)
    with pytest.raises(Unavailable, match="too many") as caught:
        await answer(client, "other")
    assert caught.value.retry_after
    await client.stop()
    with pytest.raises(Unavailable):
        await first
    assert client.grammars.pid == 0


async def test_a_process_is_renewed_before_it_has_grown(start: Start, script: Script) -> None:
    client = await start(script(), grammar_limits=GrammarLimits(trials_per_process=2))
    pids = []
    for pattern in ("a", "b", "c"):
        await answer(client, pattern)
        pids.append(client.grammars.pid)
    assert pids[0] == pids[1] != pids[2]
    assert not is_running(pids[0])


async def test_verdicts_are_not_kept_for_ever(start: Start, script: Script) -> None:
    bad = script(grammars=[{"match": "", "refuse": "no"}])
    client = await start(bad, grammar_limits=GrammarLimits(max_verdicts=2))
    for pattern in ("a", "b", "a", "c", "a", "b"):
        with pytest.raises(InvalidArgument):
            await answer(client, pattern)
    assert client.grammars.compiles == 4, "b was used longest ago"


async def test_the_engine_forgets_and_compiles_again(start: Start, script: Script) -> None:
    """An engine that got a request with a grammar it has dropped would fail it."""
    client = await start(script({"text": "x"}), grammar_limits=GrammarLimits(compiled=2))
    for patterns in ("ab", "abcab", "abc"):  # at once, so that some wait while others are dropped
        answers = [answer(client, pattern) for pattern in patterns * 3]
        assert set(await asyncio.gather(*answers)) == {"x"}
    assert client._compiled.drops
    assert client.grammars.compiles == 3, "nothing is proven again"


async def test_what_cannot_be_combined_is_refused_before_it_is_compiled(start: Start, script: Script) -> None:
    client = await start(script())
    for sampling, says in (
        ({"beams": 2}, "beam"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"min_tokens": 3}, "min_tokens 3"),
    ):
        with pytest.raises(InvalidArgument, match=says) as caught:
            await answer(client, "a", **sampling)
        assert caught.value.param == "guided_regex"
    assert client.grammars.compiles == 0
