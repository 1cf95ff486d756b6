"""Whatever happens in whatever order, every accepted request ends in exactly one way, and nothing stays behind.

A state machine over a real server and a scripted engine in a real child process: requests come, clients leave or
read slowly, the engine hangs, is killed, raises. In the end: everybody who stayed got one answer, what was
accepted has ended, and queue, engine and graph are empty.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ovserve.engine.client import EngineClient
from ovserve.serving.metrics import ModelMetrics
from tests.conftest import eventually, script_graph
from tests.rest.conftest import running

SCRIPT = json.dumps(
    {
        "step_seconds": 0.002,
        "replies": [
            {"match": "endless", "text": "word ", "repeat": 0},
            {"match": "large", "text": "word " * 200, "repeat": 20, "burst": 200},
            {"match": "raises", "text": "a b c", "raise_in_step": 2},
            {"match": "refused", "refuse": "resource_exhausted"},
            {"match": "prefill", "text": "late", "wait_steps": 20},
            {"text": "one two"},
        ],
    }
)
OPTIONS = "max_num_seqs: 2 max_queue: 3 queue_timeout: 3 request_timeout: 4"
WORDS = st.sampled_from(["hi", "endless", "large", "raises", "refused", "prefill"])


class Server(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.directory = tempfile.TemporaryDirectory(prefix="ovserve-test-")
        self.pending: list[asyncio.Task[Any]] = []  # clients that wait
        self.readers: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []  # those that read slowly
        self.stalled, self.stopped = False, 0  # an engine hangs: its pid
        self.runner.run(self._start())

    async def _start(self) -> None:
        directory = script_graph(Path(self.directory.name) / "graph", SCRIPT)
        text = (directory / "graph.pbtxt").read_text()
        (directory / "graph.pbtxt").write_text(text.replace("models_path:", f"{OPTIONS} models_path:", 1))
        self.server = await self.stack.enter_async_context(running(directory))
        self.client = await self.stack.enter_async_context(httpx.AsyncClient(base_url=self.server.url))

    @property
    def engine(self) -> EngineClient:
        return self.server.engine

    @property
    def metrics(self) -> ModelMetrics:
        return self.server.manager.metrics.of("m")

    @rule(word=WORDS, stream=st.booleans(), n=st.sampled_from([1, 1, 3]))
    def connect(self, word: str, stream: bool, n: int) -> None:
        body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": word}]}
        body |= {"n": n, "temperature": 1} if n > 1 else {}
        self.runner.run(self._connect(body))

    async def _connect(self, body: dict[str, Any]) -> None:
        before = sum(self.metrics.accepted.values())
        self.pending.append(
            asyncio.create_task(self.client.post("/v3/chat/completions", json=body, timeout=60))
        )
        await eventually(lambda: sum(self.metrics.accepted.values()) > before)

    @rule()
    def connect_and_read_slowly(self) -> None:
        self.runner.run(self._connect_and_read_slowly())

    async def _connect_and_read_slowly(self) -> None:
        body = json.dumps({"model": "m", "stream": True, "prompt": "large"}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port, limit=1024)
        head = b"POST /v3/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        self.readers.append((reader, writer))

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        task = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        task.cancel()
        self.runner.run(self._gone(task))

    async def _gone(self, task: asyncio.Task[Any]) -> None:
        await asyncio.wait({task})

    @precondition(lambda self: self.readers)
    @rule()
    def slow_reader_vanishes(self) -> None:
        _, writer = self.readers.pop()
        writer.transport.abort()

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.05]))
    def time_passes(self, seconds: float) -> None:
        self.runner.run(asyncio.sleep(seconds))

    # Preconditions look at what the machine did alone: Hypothesis wants the same rules for the same steps.

    @precondition(lambda self: not self.stalled)
    @rule()
    def kill_engine(self) -> None:
        self._signal(self.engine.pid, signal.SIGKILL)

    @precondition(lambda self: not self.stalled)
    @rule()
    def stall_engine(self) -> None:
        self.stalled, self.stopped = True, self.engine.pid
        self._signal(self.stopped, signal.SIGSTOP)

    @precondition(lambda self: self.stalled)
    @rule()
    def wake_engine(self) -> None:
        self.stalled = False
        self._signal(self.stopped, signal.SIGCONT)

    def _signal(self, pid: int, number: int) -> None:
        if pid:  # 0 between two engines
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def teardown(self) -> None:
        if not hasattr(self, "runner"):
            return
        try:
            if self.stalled:
                self._signal(self.stopped, signal.SIGCONT)
            self.runner.run(self._check())
        finally:
            self.runner.run(self.stack.aclose())
            self.runner.close()
            self.directory.cleanup()

    async def _check(self) -> None:
        for _, writer in self.readers:
            writer.transport.abort()
        answers = await asyncio.gather(*self.pending)
        for answer in answers:
            streamed = answer.headers["content-type"].startswith("text/event-stream")
            ends = answer.text.count("data: [DONE]") + answer.text.count('data: {"error"')
            assert ends == 1 if streamed else answer.json(), answer.text[-300:]
        metrics = self.metrics
        await eventually(lambda: metrics.running == 0)
        ended = metrics.finished + sum((metrics.failed + metrics.cancelled + metrics.refused).values())
        assert sum(metrics.accepted.values()) == ended
        meter = metrics.meter
        assert (meter.queued, meter.queued_tokens, meter.in_engine, self.engine.in_flight) == (0, 0, 0, 0)
        assert not self.engine.on_room
        last = await self.client.post("/v3/completions", json={"model": "m", "prompt": "hi"}, timeout=60)
        assert last.json()["choices"][0]["text"] == "one two"


def machine(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        Server,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        ),
    )


def test_every_request_has_one_end() -> None:
    machine(examples=4, steps=12)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_request_has_one_end_at_length() -> None:
    machine(examples=60, steps=25)
