"""Requests that arrive close together share the engine's first step; alone, the first would delay the rest."""

from __future__ import annotations

import asyncio
from typing import Any

from conftest import Script

from ovserve.engine.client.process import EngineProcess
from ovserve.engine.protocol.messages import Accepted, Add, Steps
from ovserve.engine.protocol.specs import ScriptSpec
from ovserve.llm.request import Sampling

BURST = 6
TRIES = 5


async def test_a_burst_is_admitted_before_the_first_step(script: Script) -> None:
    """By the order of the engine's words. The machine may stall between two sends, so most tries must do."""
    words: list[Any] = []
    stepped = asyncio.Event()

    def on_word(word: Any) -> None:
        words.append(word)
        if isinstance(word, Steps):
            stepped.set()

    process = EngineProcess(on_word, lambda: None)
    await process.start(
        ScriptSpec(script({"match": "", "text": "a"}, step_seconds=0.02)), ready_timeout=100.0
    )
    together = 0
    try:
        for round_ in range(TRIES):
            words.clear()
            stepped.clear()
            for i in range(BURST):
                process.send(Add(1 + round_ * BURST + i, "hello", False, Sampling()))
                await asyncio.sleep(0)
            await asyncio.wait_for(stepped.wait(), 60)
            together += [type(w) for w in words[: BURST + 1]] == [Accepted] * BURST + [Steps]
            await asyncio.sleep(0.2)
    finally:
        await process.stop(5.0)
    assert together >= TRIES // 2 + 1
