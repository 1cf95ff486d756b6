"""What may happen to realtime sessions: engines that are killed, a reload, a revoked key, clients that read nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from ovserve.access import Guard
from ovserve.access.keys import entry_text
from ovserve.http.routes import realtime
from tests.conftest import eventually, start_process
from tests.http.conftest import Running, running
from tests.http.test_realtime import SCRIPT, Talker, servable_running, talker, talking, text_graph
from tests.http.test_realtime_audio import graph, play, question, silence

__all__ = ["graph"]  # the fixture
pytestmark = pytest.mark.long
STORY = "Tell a long story"


def pid_of(server: Running, packet: str) -> int:
    return server.manager.get("m").engines[packet].pid


async def one_end(talk: Talker) -> str:
    """Return the status of the response in progress; there is one error at most, and it is in its end."""
    status: str = (await talk.until("response.done"))["response"]["status"]
    ends = [e["response"]["id"] for e in talk.events if e["type"] == "response.done"]
    assert len(ends) == len(set(ends)) == talk.kinds.count("response.created")
    assert "error" not in talk.kinds
    return status


async def test_an_engine_killed_in_an_answer_ends_it_and_not_the_session(
    graph: Path, subtests: pytest.Subtests
) -> None:
    async with running(graph) as server:
        for packet in ("llm", "t2s_servable"):
            with subtests.test(packet):
                await kill_in_an_answer(server, packet)


async def kill_in_an_answer(server: Running, packet: str) -> None:
    async with talker(server) as talk:
        # A call of which nothing has been read is repeated, so a voice may go on with the next sentence.
        most: Any = "inf" if packet == "llm" else 60
        await talk.send("session.update", session={"instructions": STORY, "max_output_tokens": most})
        await talk.say("Begin")
        await talk.send("response.create")
        await talk.until("response.output_audio.delta")
        pid = pid_of(server, packet)
        os.kill(pid, signal.SIGKILL)
        assert await one_end(talk) in (("failed",) if packet == "llm" else ("failed", "incomplete"))
        await eventually(lambda: pid_of(server, packet) not in (0, pid))
        await talk.send("session.update", session={"type": "realtime", "instructions": ""})
        response = await talk.ask("Hi")
        assert response["status"] == "completed"
        assert response["usage"]["output_token_details"]["audio_tokens"] > 0


async def test_an_engine_killed_before_it_answers_costs_one_turn_at_most(
    graph: Path, subtests: pytest.Subtests
) -> None:
    async with running(graph) as server:
        for packet in ("s2t_servable", "t2s_servable"):
            with subtests.test(packet):
                await kill_before_it_answers(server, packet)


async def kill_before_it_answers(server: Running, packet: str) -> None:
    config = {
        "type": "realtime",
        "audio": {"input": {"turn_detection": None, "transcription": {"model": "x"}}},
    }
    async with talker(server) as talk:
        await talk.send("session.update", session=config)
        await talk.until("session.updated")
        for kill in (True, False):
            pid = pid_of(server, packet)
            if kill:
                os.kill(pid, signal.SIGSTOP)
            await play(talk, question())
            await talk.send("input_audio_buffer.commit")
            await talk.send("response.create")
            await talk.until("response.created")
            if kill:
                os.kill(pid, signal.SIGKILL)
            assert await one_end(talk) in (("completed", "failed") if kill else ("completed",))
            await eventually(lambda: pid_of(server, packet) != 0)
        heard = [k for k in talk.kinds if k.endswith(("transcription.completed", "transcription.failed"))]
        assert len(heard) == 2


async def test_a_killed_ear_for_activity_loses_a_turn_at_most(graph: Path) -> None:
    async with running(graph) as server, talker(server) as talk:
        for kill in (True, False):
            pid = pid_of(server, "vad")
            if kill:
                os.kill(pid, signal.SIGSTOP)
            await play(talk, question())
            if kill:
                os.kill(pid, signal.SIGKILL)
                await eventually(lambda pid=pid: pid_of(server, "vad") not in (0, pid))
            await play(talk, silence(1))
        while (event := await talk.next())["type"] != "response.done":
            pass
        assert event["response"]["status"] == "completed"


async def test_a_reload_leaves_open_sessions_their_graph(tmp_path: Path) -> None:
    async with talking(tmp_path) as server, talker(server) as talk:
        await talk.ask("Hi")
        file = tmp_path / "graph/graph.pbtxt"
        script = tmp_path / "graph/other.script.json"
        script.write_text(json.dumps({**SCRIPT, "replies": [{"text": "I am new."}]}))
        file.write_text(file.read_text().replace("model.script.json", "other.script.json"))
        await server.manager.load("m", tmp_path / "graph")
        async with talker(server) as other:
            new, old = await asyncio.gather(other.ask("Hi"), talk.ask("Hi again"))
        assert new["output"][0]["content"][0]["text"] == "I am new."
        assert old["output"][0]["content"][0]["text"] == "Hello there, friend."


async def test_a_revoked_key_ends_its_sessions_and_no_others(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    keys = [entry_text(name, name) for name in ("alice", "bob")]
    file.write_text("".join(keys))
    async with talking(tmp_path, Guard(keys_file=file)) as server:
        url, session = f"{server.url}/v1/realtime?model=m", aiohttp.ClientSession()
        async with session:
            mine = [
                await session.ws_connect(url, headers={"Authorization": f"Bearer {name}"})
                for name in ("alice", "bob")
            ]
            alice, bob = map(Talker, mine)
            await alice.next()
            await bob.next()
            file.write_text(keys[1])
            assert (await alice.next())["error"]["code"] == "invalid_api_key"
            message = await alice.ws.receive(timeout=230)
            assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1008)
            assert (await bob.ask("Hi"))["status"] == "completed"


async def test_a_client_that_reads_nothing_is_closed_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(realtime, "SEND_SECONDS", 0.5)
    async with talking(tmp_path) as server, talker(server) as talk:
        transport = talk.ws._response.connection.transport  # type: ignore[union-attr]
        transport.pause_reading()
        async with talker(server) as other:
            content = [{"type": "input_text", "text": "x" * 200_000}]
            item = {"id": "mine", "type": "message", "role": "user", "content": content}
            await talk.send("conversation.item.create", item=item)
            for _ in range(150):  # 30 MB are more than what the system buffers
                await talk.send("conversation.item.retrieve", item_id="mine")
            assert (await other.ask("Hi"))["status"] == "completed"
            await eventually(lambda: servable_running(server) == 1)
        transport.resume_reading()
        while (message := await talk.ws.receive(timeout=230)).type is aiohttp.WSMsgType.TEXT:
            pass
        assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
        assert message.data in (1008, None)


async def test_a_client_that_says_nothing_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtime, "IDLE_SECONDS", 0.0)
    async with talking(tmp_path) as server, talker(server) as talk:
        assert (await talk.next())["error"]["code"] == "session_idle"
        message = await talk.ws.receive(timeout=230)
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1001)


async def test_sigterm_ends_sessions_with_1001(tmp_path: Path) -> None:
    place = text_graph(tmp_path / "graph", "model.script.json")
    (place / "model.script.json").write_text(json.dumps(SCRIPT))
    server = start_process("--model_name", "m", "--model_path", str(place), "--shutdown_timeout", "1")
    try:
        url = f"{server.url}/v1/realtime?model=m"
        async with aiohttp.ClientSession() as session, session.ws_connect(url) as ws:
            talk = Talker(ws)
            await talk.ask("Hi")
            server.process.send_signal(signal.SIGTERM)
            message = await ws.receive(timeout=230)
            assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1001)
        assert await asyncio.to_thread(server.process.wait, 60) == 0
    finally:
        await asyncio.to_thread(server.stop)


async def test_two_sessions_at_once_do_not_mix(graph: Path) -> None:
    async with running(graph) as server, talker(server) as one, talker(server) as two:
        for talk in (one, two):
            await talk.send("session.update", session={"type": "realtime", "instructions": ""})

        async def turn(talk: Talker) -> str:
            await play(talk, np.concatenate([question(), silence(1)]))
            await talk.until("response.done")
            items = {e["item_id"] for e in talk.events if e["type"].endswith("speech_started")}
            assert len(items) == 1
            return items.pop()

        assert len(set(await asyncio.gather(turn(one), turn(two)))) == 2


async def test_a_hundred_sessions_open_and_close(tmp_path: Path) -> None:
    async with talking(tmp_path) as server:

        async def visit(number: int) -> None:
            async with talker(server) as talk:
                if number % 2:
                    assert (await talk.ask("Hi"))["status"] == "completed"

        for at in range(0, 100, 20):
            await asyncio.gather(*(visit(at + i) for i in range(20)))
        await eventually(lambda: not servable_running(server))
        metrics = server.manager.get("m").metrics
        assert not sum(metrics.errors.values())
        assert metrics.running == 0


async def test_an_answer_that_only_repeats_itself_says_so(model: Path, tmp_path: Path) -> None:
    """The real model goes on with what was said."""
    place = text_graph(tmp_path / "graph", str(model.parent))
    loop = "Again and again. " * 40
    async with running(place) as server, talker(server) as talk:
        for _ in range(2):
            await talk.say(loop)
            content = [{"type": "output_text", "text": loop}]
            item = {"type": "message", "role": "assistant", "content": content}
            await talk.send("conversation.item.create", item=item)
        await talk.say(loop)
        await talk.send("response.create")
        response = (await talk.until("response.done"))["response"]
        assert response["status"] == "incomplete"
        details = response["status_details"]
        assert (details["error"]["code"], details.get("reason")) == ("repetition_detected", None)
        assert response["output"][0]["status"] == "incomplete"
