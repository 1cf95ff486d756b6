"""Bytes that are no frame end in an error on either side, never in a wait for more."""

import asyncio
import socket
import subprocess
import sys

import pytest
from conftest import Script, Start, read_all, request
from hypothesis import given
from hypothesis import strategies as st

from ovserve.engine.protocol.frames import MAX_FRAME, Channel, FrameDecoder, FrameError, encode
from ovserve.engine.protocol.messages import (
    Abort,
    Accepted,
    Failed,
    FromEngine,
    Load,
    StepItem,
    Steps,
    Stop,
    ToEngine,
)
from ovserve.engine.protocol.specs import ScriptSpec
from ovserve.errors import EngineDead, InvalidArgument, PayloadTooLarge

WORDS = [
    Accepted(1, 2, 3),
    Steps([StepItem(1, "hé", 1, None), StepItem(2, "", 1, "stop")]),
    Failed(3, "k", "m"),
]


@given(st.lists(st.integers(1, 40), min_size=1))
def test_any_cut_gives_the_same_messages(sizes: list[int]) -> None:
    data = b"".join(map(encode, WORDS))
    decoder: FrameDecoder[FromEngine] = FrameDecoder(FromEngine)
    found: list[FromEngine] = []
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        found += decoder.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert found == WORDS


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another-protocol"),
        pytest.param((MAX_FRAME + 1).to_bytes(4, "big"), id="too-large"),
        pytest.param(b"\0\0\0\x01\xc1", id="not-msgpack"),
        pytest.param(b"\0\0\0\0", id="empty"),
        pytest.param(encode(Steps([])), id="wrong-direction"),
        pytest.param(encode(Stop())[:3] + b"\x01" + encode(Stop())[4:], id="wrong-length"),
    ],
)
def test_decoder_raises(data: bytes) -> None:
    with pytest.raises(FrameError):
        FrameDecoder[ToEngine](ToEngine).feed(data)


def test_channel_reads_all_that_is_there_and_does_not_block() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel: Channel[ToEngine] = Channel(theirs, ToEngine)
        assert channel.receive(block=False) == []
        ours.sendall(encode(Abort(1)) + encode(Abort(2)) + encode(Stop())[:3])
        assert channel.receive(block=True) == [Abort(1), Abort(2)]
        ours.sendall(encode(Stop())[3:])
        assert channel.receive(block=True) == [Stop()]
        ours.close()
        with pytest.raises(EOFError):
            channel.receive(block=False)


@pytest.mark.parametrize("garbage", [b"\xff" * 64, encode(Accepted(1, 1, 1))])
def test_worker_ends_with_a_protocol_error(script: Script, garbage: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            fd = theirs.fileno()
            worker = subprocess.Popen(
                [sys.executable, "-m", "ovserve.engine.worker.main", str(fd)],
                pass_fds=[fd],
                stderr=subprocess.PIPE,
            )
        ours.sendall(encode(Load.of(ScriptSpec(script()))) + garbage)
        _, errors = worker.communicate(timeout=230)
    assert worker.returncode == 65
    assert b"protocol error" in errors


def test_worker_ends_when_it_gets_end_of_file_instead_of_load() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        fd = theirs.fileno()
        worker = subprocess.Popen(
            [sys.executable, "-m", "ovserve.engine.worker.main", str(fd)], pass_fds=[fd]
        )
    ours.close()
    assert worker.wait(timeout=230) == 0


async def test_an_engine_talking_nonsense_is_replaced(start: Start, script: Script) -> None:
    client = await start(
        script(
            {"match": "slow", "pieces": ["tick "], "repeat": 0, "step_seconds": 0.3},
            {"match": "", "text": "well"},
        )
    )
    stream = await client.generate(request("slow"))
    await stream.next()
    assert (await stream.next()).text
    assert client._process is not None
    client._process.data_received(b"\xff" * 64)
    with pytest.raises(EngineDead):
        async with asyncio.timeout(60):
            await read_all(stream)
    assert (await read_all(await client.generate(request())))[0] == "well"


async def test_a_request_that_cannot_be_encoded_is_refused(start: Start, script: Script) -> None:
    client = await start(script())
    with pytest.raises(InvalidArgument):
        await client.generate(request("\ud800"))
    with pytest.raises(InvalidArgument):
        await client.generate(request(seed=2**70))
    assert client.stats().running == 0
    await read_all(await client.generate(request()))


async def test_a_message_that_no_frame_holds_is_the_clients_error(
    start: Start, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await start(script({"text": "well"}))
    monkeypatch.setattr("ovserve.engine.protocol.frames.MAX_FRAME", 1000)
    with pytest.raises(PayloadTooLarge, match="cannot be sent to the engine: .* over the limit of 1000"):
        await client.generate(request("x" * 1000))
    with pytest.raises(PayloadTooLarge, match="cannot be sent to the engine: .* over the limit of 1000"):
        await client.tokenize(["x" * 1000], add_special_tokens=False)
    text, _ = await read_all(await client.generate(request()))
    assert text == "well"
