"""Prefixes that recent requests shared are computed again in an engine that was loaded anew."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from conftest import FAST_RESTARTS, Script, eventually, read_all, request

from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.client.text import TextClient
from ovserve.engine.protocol.messages import Abort, Add, ToEngine
from ovserve.engine.protocol.specs import text_spec

pytestmark = pytest.mark.long

# The scripted tokenizer numbers words in the order in which they come: the first prefix that is tokenized
# begins with the ids 0 to 199, which a reply can match.
RULES = " ".join(f"rule{i}" for i in range(200)) + " "
TABLE = " ".join(f"row{i}" for i in range(150)) + " "
FIRST = "0 1 2 3 4 "


class Warmed:
    """A client, and the messages that its engine gets for requests."""

    def __init__(self, client: TextClient) -> None:
        self.client = client
        self.sent: list[Add | Abort] = []
        self.stops_at_replay = False  # so that a replay is not over before the test looks
        send = client._requests._send

        def note(message: ToEngine) -> None:
            if isinstance(message, Add | Abort):
                self.sent.append(message)
            if self.stops_at_replay and self.replays:
                os.kill(client.pid, signal.SIGSTOP)
            send(message)

        client._requests._send = note

    @property
    def replays(self) -> list[Add]:
        return [m for m in self.sent if isinstance(m, Add) and not isinstance(m.prompt, str)]

    @property
    def tokens(self) -> int:
        return self.client.stats().replayed_tokens

    async def ask(self, *prompts: str) -> None:
        for prompt in prompts:
            await read_all(await self.client.generate(request(prompt)))

    async def sleep(self) -> None:
        assert await self.client.sleep()
        await eventually(lambda: not self.client.pid)
        self.sent.clear()

    async def wake(self) -> None:
        self.client.wake()
        await self.client.settled()


Warm = Callable[..., Awaitable[Warmed]]


@pytest.fixture
async def warm() -> AsyncIterator[Warm]:
    clients: list[TextClient] = []

    async def start(path: str, tokens: int = 1000, **spec: Any) -> Warmed:
        spec = {"enable_prefix_caching": True, "cache_size": 1} | spec
        settings = EngineSettings(ready_timeout=100.0, restarts=FAST_RESTARTS, warm_prefix_tokens=tokens)
        client = await TextClient.start(text_spec(path, **spec), settings)
        clients.append(client)
        return Warmed(client)

    yield start
    for client in clients:
        await client.stop()


SHARED = (RULES + "a", RULES + "b", RULES + "c", TABLE + "a", TABLE + "b", "seen once")


async def test_shared_prefixes_are_computed_after_a_wake_the_most_valuable_first(
    warm: Warm, script: Script
) -> None:
    warmed = await warm(script())
    await warmed.ask(*SHARED)
    await warmed.sleep()
    await warmed.wake()
    await eventually(lambda: len(warmed.replays) == 2 and not warmed.client.in_flight)
    first, second = warmed.replays
    # Whole blocks of 32; the last token of a text that is cut may be another one.
    assert first.prompt == tuple(range(192))
    assert second.prompt == tuple(range(200, 200 + 128))
    assert first.sampling.max_tokens == second.sampling.max_tokens == 1
    await eventually(lambda: warmed.tokens == 192 + 128)
    await asyncio.sleep(0.4)
    assert len(warmed.sent) == 2, "each once"


@pytest.mark.parametrize(("budget", "lengths"), [(100, [96]), (250, [192]), (300, [192, 96]), (63, [])])
async def test_the_tokens_are_bounded(warm: Warm, script: Script, budget: int, lengths: list[int]) -> None:
    warmed = await warm(script(), budget)
    await warmed.ask(*SHARED)
    await warmed.sleep()
    await warmed.wake()
    await eventually(lambda: warmed.tokens == sum(lengths) <= budget)
    await asyncio.sleep(0.4)
    assert [len(add.prompt) for add in warmed.replays] == lengths


async def test_a_cache_that_grows_gets_room_for_all_of_them_first(warm: Warm, script: Script) -> None:
    warmed = await warm(
        script({"match": FIRST, "text": "w ", "repeat": 0, "step_seconds": 0.005}), cache_size=0
    )
    await warmed.ask(*SHARED)
    await warmed.sleep()
    await warmed.wake()
    await eventually(lambda: len(warmed.replays) == 3)
    room, first, second = warmed.replays
    assert isinstance(first.prompt, tuple)
    assert room.prompt == first.prompt + second.prompt
    assert room.sampling.max_tokens == 192 + 128
    assert isinstance(warmed.sent[1], Abort)
    await eventually(lambda: warmed.tokens == 192 + 128)


async def test_clients_go_first_and_what_they_bring_is_not_computed_twice(warm: Warm, script: Script) -> None:
    warmed = await warm(script({"match": "long", "text": "word ", "repeat": 60, "step_seconds": 0.01}))
    await warmed.ask(*SHARED)
    await warmed.sleep()
    waking = asyncio.create_task(warmed.ask(TABLE + "long"))
    await asyncio.sleep(0.1)
    await warmed.wake()
    await waking
    assert [add.prompt for add in warmed.sent if isinstance(add, Add)] == [TABLE + "long"]
    await eventually(lambda: bool(warmed.tokens))
    assert [len(add.prompt) for add in warmed.replays] == [192], "the table is in the cache"


async def test_a_client_interrupts_it_and_it_goes_on_later(warm: Warm, script: Script) -> None:
    warmed = await warm(script({"match": FIRST, "prefill_steps": 40, "step_seconds": 0.02}))
    await warmed.ask(*SHARED)
    await warmed.sleep()
    warmed.stops_at_replay = True
    await warmed.wake()
    await eventually(lambda: bool(warmed.replays))
    client = warmed.client
    warmed.stops_at_replay = False
    assert (client.in_flight, client.busy, client._holds()) == (0, False, 1)
    hello = asyncio.create_task(warmed.ask("hello"))
    await eventually(lambda: len(warmed.sent) == 3)
    os.kill(client.pid, signal.SIGCONT)
    await hello
    first, abort, asked, *_ = warmed.sent
    assert isinstance(first, Add)
    assert abort == Abort(first.id)
    assert isinstance(asked, Add)
    assert asked.prompt == "hello"
    await eventually(lambda: warmed.tokens == 192 + 128)
    assert [len(add.prompt) for add in warmed.replays] == [192, 192, 128]


async def test_it_does_not_keep_an_engine_loaded(warm: Warm, script: Script) -> None:
    warmed = await warm(script({"match": FIRST, "prefill_steps": 1000, "step_seconds": 0.01}))
    await warmed.ask(*SHARED)
    for _ in "ab":
        await warmed.sleep()
        await warmed.wake()
        await eventually(lambda: bool(warmed.replays))
    warmed.client.hold(True)
    await eventually(lambda: isinstance(warmed.sent[-1], Abort))


async def test_it_waits_while_another_graph_is_loaded(warm: Warm, script: Script) -> None:
    warmed = await warm(script())
    await warmed.ask(*SHARED)
    await warmed.sleep()
    waits = True
    warmed.client.dormancy.others_wait = lambda: waits
    await warmed.wake()
    await asyncio.sleep(0.5)
    assert not warmed.replays
    waits = False
    await eventually(lambda: len(warmed.replays) == 2)


async def test_after_an_engine_was_killed(warm: Warm, script: Script) -> None:
    warmed = await warm(script())
    await warmed.ask(*SHARED)
    warmed.sent.clear()
    os.kill(warmed.client.pid, signal.SIGKILL)
    await eventually(lambda: warmed.tokens == 192 + 128)


async def test_one_that_ends_engines_is_tried_once(warm: Warm, script: Script) -> None:
    warmed = await warm(script({"match": FIRST, "exit_in_step": 1}))
    await warmed.ask(*SHARED)
    await warmed.sleep()
    await warmed.wake()
    client = warmed.client
    await eventually(lambda: client.stats().restarts == 1 and client.state.name == "ready")
    await asyncio.sleep(0.5)
    assert len(warmed.replays) == 1
    assert len(client._replay.record) == 0
    await warmed.ask("hello")


async def test_where_nothing_is_cached_nothing_is_recorded(warm: Warm, script: Script) -> None:
    for options in ({"enable_prefix_caching": False}, {"tokens": 0}):
        warmed = await warm(script(), **options)
        await warmed.ask(*SHARED)
        assert not warmed.client._replay.record
