"""Tokenize and Detokenize: answered between steps, by both engines; ended by death, by leaving, by stop."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from ovserve.engine.client.text import TextClient
from ovserve.engine.protocol.specs import TextSpec
from ovserve.errors import EngineDead, InvalidArgument, Unavailable
from tests.conftest import eventually
from tests.engine.conftest import Script, Start, request

pytestmark = pytest.mark.long


async def test_there_and_back(start: Start, script: Script) -> None:
    client = await start(script())
    ids = await client.tokenize(["a b a", ""], add_special_tokens=False)
    assert ids == [[0, 1, 0], []]
    assert await client.detokenize(ids) == ["a b a", ""]
    assert client.stats().requests == 0, "a question is no request"


async def test_while_a_request_runs(start: Start, script: Script) -> None:
    client = await start(script({"text": "w ", "repeat": 0, "step_seconds": 0.01}))
    stream = await client.generate(request())
    await stream.next()
    answers = await asyncio.gather(
        *(client.tokenize([f"w{i} " * (i + 1)], add_special_tokens=True) for i in range(20))
    )
    assert [len(a[0]) for a in answers] == list(range(1, 21))
    assert client.stats().running == 1
    assert (await stream.next()).text, "it goes on"
    stream.abort_if_running()


async def test_what_cannot_be_asked(start: Start, script: Script) -> None:
    client = await start(script())
    with pytest.raises(InvalidArgument, match="vocabulary"):
        await client.detokenize([[99]])
    with pytest.raises(InvalidArgument, match="cannot be sent"):
        await client.tokenize(["\ud83d"], add_special_tokens=True)
    with pytest.raises(InvalidArgument, match="cannot be sent"):
        await client.detokenize([[2**70]])
    assert len(client._pending) == 0


async def test_death_ends_questions(start: Start, script: Script) -> None:
    client = await start(script(tokenize_seconds=30))
    asked = [asyncio.create_task(client.tokenize(["a"], add_special_tokens=True)) for _ in range(3)]
    await eventually(lambda: len(client._pending) == 3)
    os.kill(client.pid, signal.SIGKILL)
    for ended in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(ended, EngineDead)
    assert len(client._pending) == 0


async def test_a_question_waits_for_the_next_engine(start: Start, script: Script) -> None:
    client = await start(script())
    pid = client.pid
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: client.state.name == "restarting")
    assert await client.tokenize(["a"], add_special_tokens=True) == [[0]]
    assert client.pid != pid


async def test_who_leaves_is_forgotten(start: Start, script: Script) -> None:
    client = await start(script())
    os.kill(client.pid, signal.SIGSTOP)
    asked = asyncio.create_task(client.tokenize(["a"], add_special_tokens=True))
    await eventually(lambda: len(client._pending) == 1)
    asked.cancel()
    await asyncio.wait([asked])
    assert len(client._pending) == 0
    os.kill(client.pid, signal.SIGCONT)
    assert await client.tokenize(["b"], add_special_tokens=True) == [[1]], "the late answer went nowhere"


async def test_stop_ends_questions(start: Start, script: Script) -> None:
    client = await start(script(tokenize_seconds=30), stop_grace=0.2)
    asked = asyncio.create_task(client.detokenize([]))
    await eventually(lambda: len(client._pending) == 1)
    await client.stop()
    with pytest.raises(Unavailable, match="stopping"):
        await asked
    with pytest.raises(Unavailable):
        await client.tokenize(["a"], add_special_tokens=True)


async def test_the_real_tokenizer(short_model: Path) -> None:
    client = await TextClient.start(TextSpec(str(short_model)))
    try:
        texts = ["Hello world", "", "🙂 naïve 中文", "<|im_start|>user\nhi<|im_end|>"]
        ids = await client.tokenize(texts, add_special_tokens=True)
        assert [len(row) for row in ids][1] == 0
        assert ids[3][0] == 1
        assert await client.detokenize(ids) == texts
        hidden = await client.detokenize(ids, skip_special_tokens=True)
        assert hidden[3] == "user\nhi"
        assert client.facts.pad_token_id is not None
        with pytest.raises(InvalidArgument, match="token id 49152 is not in the vocabulary of 49152"):
            await client.detokenize([[1, 49152]])
        with pytest.raises(InvalidArgument):
            await client.detokenize([[-1]])
        # It cuts at 8192 by itself; we do not (genai/text.py).
        pieces = [
            "The cat sat on the mat. ",
            "1234567 ",
            "naïve 中文 🙂 ",
            "def f(x):\n    return x\n\n",
            "don't ",
        ]
        text = "".join(pieces) * 30
        (short,) = await client.tokenize([text], add_special_tokens=False)
        (long,) = await client.tokenize([text * 12], add_special_tokens=False)
        assert len(short) < 4096 < 8192 < len(long)
        assert await client.detokenize([long]) == [text * 12]
        assert abs(len(long) - 12 * len(short)) < 12
    finally:
        await client.stop()
