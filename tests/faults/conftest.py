"""What the faults are done to: a server in this process that restarts engines fast, and chats that judge their
own answers. The engine is scripted and a real child process."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from ovserve.engine.client.state import RestartPolicy
from ovserve.http.connections import RestLimits
from tests.conftest import script_graph
from tests.http.conftest import Running, running

ANSWER = " ".join(f"word{i}" for i in range(12))
LONG = "x" * 2000
LOOK = 0.005  # seconds between two looks at the loop
SCRIPT = {
    "step_seconds": 0.01,
    "replies": [
        {"match": "endless", "text": "word ", "repeat": 0},
        {"match": "quiet", "text": "word ", "repeat": 0, "step_seconds": 0.5},
        {"match": "flood", "text": f"{LONG} ", "repeat": 0, "burst": 20},
        {"match": "raise", "text": ANSWER, "raise_in_step": 4},
        {"text": ANSWER},
    ],
}
RESTARTS = RestartPolicy(
    first_pause=0.01, longest_pause=0.05, lasted=0.0, max_load_failures=3, stall_timeout=6.0
)
LIMITS = RestLimits(body_bytes=1 << 20, shutdown_seconds=2.0, read_seconds=4.0, write_seconds=4.0)


@dataclass
class Hurt:
    """A server that is about to be hurt, and a client of it."""

    server: Running
    http: httpx.AsyncClient
    ends: Counter[str] = field(default_factory=Counter)
    loop_late: float = 0.0  # seconds, the longest that the server's event loop did not turn
    chat_seconds: float = 0.0  # the longest of a chat, whatever its end

    async def watch_loop(self) -> None:
        while True:
            due = time.monotonic() + LOOK
            await asyncio.sleep(LOOK)
            self.loop_late = max(self.loop_late, time.monotonic() - due)

    def figures(self) -> str:
        return (
            f"the loop stood {self.loop_late * 1000:.0f} ms at most; {self.ends.total()} chats, "
            f"the longest {self.chat_seconds:.2f} s: {dict(self.ends)}"
        )

    async def chat(self, word: str = "hi", *, stream: bool = False, **more: Any) -> str:
        """ "whole" for a complete and right answer, else the error's code; anything else fails the test."""
        body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": word}], **more}
        began = time.monotonic()
        answer = await self.http.post("/v3/chat/completions", json=body, timeout=230)
        self.chat_seconds = max(self.chat_seconds, time.monotonic() - began)
        end = told(answer)
        self.ends[end] += 1
        return end

    async def load(self, clients: int, over: asyncio.Event) -> None:
        """So many clients, every other one streaming, that ask again and again until it is over."""

        async def client(number: int) -> None:
            while not over.is_set():
                await self.chat(stream=number % 2 == 0)

        await asyncio.gather(*(client(number) for number in range(clients)))

    def check(self) -> None:
        """Every request has ended, in one way, and nothing is held for it."""
        metrics, engine = self.server.manager.metrics.of("m"), self.server.engine
        ended = metrics.finished + sum((metrics.failed + metrics.cancelled + metrics.refused).values())
        assert (sum(metrics.accepted.values()), metrics.running) == (ended, 0)
        meter = metrics.meter
        assert (meter.queued, meter.queued_tokens, meter.in_engine, engine.in_flight) == (0, 0, 0, 0)
        stats = engine.stats()
        assert stats.requests == stats.finished + stats.failed + stats.aborted


def told(answer: httpx.Response) -> str:
    if not answer.headers["content-type"].startswith("text/event-stream"):
        told = answer.json()
        if answer.status_code != 200:
            hopeless = answer.headers.get("x-should-retry") == "false"  # it ends engines
            assert hopeless or "retry-after" in answer.headers, answer.text
            return str(told["error"]["code"] or told["error"]["type"])
        assert told["choices"][0]["message"]["content"] == ANSWER
        return "whole"
    assert answer.status_code == 200, answer.text
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: ")]
    pieces = [json.loads(event) for event in events if event != "[DONE]"]
    errors = [piece["error"] for piece in pieces if "error" in piece]
    text = "".join(c["delta"].get("content") or "" for p in pieces for c in p.get("choices", ()))
    assert ANSWER.startswith(text) or set(text.split()) == {"word"}, text
    if events[-1] == "[DONE]":
        assert not errors
        assert text == ANSWER
        return "whole"
    assert len(errors) == 1
    assert "error" in pieces[-1]
    return str(errors[0]["code"])


Hurting = Callable[..., AbstractAsyncContextManager[Hurt]]


Figure = Callable[[str], None]


@pytest.fixture
def figure(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Figure:
    """Print a figure of the test, for docs/reliability.md."""

    def show(line: str) -> None:
        with capsys.disabled():
            print(f"\n  {request.node.name.removeprefix('test_').replace('_', ' ')}: {line}")  # noqa: T201

    return show


@pytest.fixture
def hurting(tmp_path: Path, figure: Figure) -> Hurting:
    @asynccontextmanager
    async def start(**script: Any) -> AsyncIterator[Hurt]:
        directory = script_graph(tmp_path / "graph", json.dumps({**SCRIPT, **script}))
        async with (
            running(directory, limits=LIMITS, restarts=RESTARTS) as server,
            httpx.AsyncClient(base_url=server.url) as http,
        ):
            hurt = Hurt(server, http)
            watching = asyncio.create_task(hurt.watch_loop())
            yield hurt
            watching.cancel()
            figure(hurt.figures())

    return start
