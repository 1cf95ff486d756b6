"""Whatever happens in whatever order, every accepted request ends in exactly one way, and nothing stays behind.

A state machine over a real server and a scripted engine in a real child process: requests come, clients leave or
read nothing, the engine hangs, is killed, raises; the graph is reloaded, with its engine kept or replaced or killed
under it, and unloaded. In the end: everybody who stayed got one answer, what was accepted has ended, also for
those who still read nothing, and queue, engine and graph are empty.
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
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ovserve.engine.client.state import RestartPolicy
from ovserve.engine.client.text import TextClient
from ovserve.errors import LoadError, ModelNotFound, OvserveError
from ovserve.http.connections import RestLimits
from ovserve.telemetry.metrics import ModelMetrics
from tests.conftest import eventually, script_graph
from tests.http.conftest import running

SCRIPT = {
    "step_seconds": 0.002,
    "replies": [
        {"match": "endless", "text": "word ", "repeat": 0},
        {"match": "flood", "text": "x" * 4000 + " ", "repeat": 0},
        {"match": "raises", "text": "a b c", "raise_in_step": 2},
        {"match": "refused", "refuse": "resource_exhausted"},
        {"match": "prefill", "text": "late", "wait_steps": 20},
        {"text": "one two"},
    ],
}
LIMITS = RestLimits(body_bytes=1 << 20, shutdown_seconds=2.0, write_seconds=0.5)
RESTARTS = RestartPolicy(first_pause=0.02, longest_pause=0.2, lasted=0.0, stall_timeout=1.0)
OPTIONS = "max_num_seqs: 2 max_queue: 3 queue_timeout: 5 request_timeout: 6"
WORDS = st.sampled_from(["hi", "endless", "large", "raises", "refused", "prefill"])


class Server(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.directory = tempfile.TemporaryDirectory(prefix="ovserve-test-")
        self.pending: list[asyncio.Task[Any]] = []  # clients that wait
        self.readers: list[tuple[asyncio.Task[bytes], asyncio.StreamWriter]] = []  # those that read slowly
        self.stalled, self.stopped = False, 0  # an engine hangs: its pid
        self.unloaded, self.version = False, 0
        self.changes: list[asyncio.Task[Any]] = []  # loads under way
        self.runner.run(self._start())

    async def _start(self) -> None:
        self.graph = Path(self.directory.name) / "graph"
        self._write(engine=True)
        served = running(self.graph, limits=LIMITS, restarts=RESTARTS)
        self.server = await self.stack.enter_async_context(served)
        self.client = await self.stack.enter_async_context(httpx.AsyncClient(base_url=self.server.url))

    def _write(self, *, engine: bool) -> None:
        """Another version of the graph, or also of its engine."""
        self.version += 1
        script = SCRIPT | {"max_length": 4096 + self.version} if engine else None
        text = json.dumps(script) if script else (self.graph / "model.script.json").read_text()
        script_graph(self.graph, text)
        graph = (self.graph / "graph.pbtxt").read_text()
        options = f"best_of_limit: {20 + self.version} {OPTIONS} models_path:"
        (self.graph / "graph.pbtxt").write_text(graph.replace("models_path:", options, 1))

    @property
    def engine(self) -> TextClient:
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
        task = asyncio.create_task(self.client.post("/v3/chat/completions", json=body, timeout=230))
        self.pending.append(task)
        await eventually(lambda: sum(self.metrics.accepted.values()) > before or task.done())

    @rule()
    def connect_and_read_nothing(self) -> None:
        self.runner.run(self._connect_and_read_nothing())

    async def _connect_and_read_nothing(self) -> None:
        body = json.dumps({"model": "m", "stream": True, "prompt": "flood"}).encode()
        before = sum(self.metrics.accepted.values())
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port, limit=1024)
        head = b"POST /v3/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        status = asyncio.create_task(reader.readline())  # and no more; at once if it is refused
        self.readers.append((status, writer))
        await eventually(lambda: sum(self.metrics.accepted.values()) > before or status.done())

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
        status, writer = self.readers.pop()
        writer.transport.abort()
        self.runner.run(self._gone(status))

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.05]))
    def time_passes(self, seconds: float) -> None:
        self.runner.run(asyncio.sleep(seconds))

    @rule(engine=st.booleans())
    def reload(self, engine: bool) -> None:
        self._write(engine=engine)
        self.unloaded = False
        self.runner.run(self._reload())

    async def _reload(self) -> None:
        self.changes.append(asyncio.create_task(self.server.manager.load("m", self.graph)))

    @precondition(lambda self: not self.unloaded)
    @rule(seconds=st.sampled_from([0.0, 0.1, 0.3]), new=st.booleans())
    def kill_during_reload(self, seconds: float, new: bool) -> None:
        """The engine that serves, or the one that loads."""
        self._write(engine=True)
        self.runner.run(self._kill_during_reload(seconds, new))

    async def _kill_during_reload(self, seconds: float, new: bool) -> None:
        before = _engines()
        await self._reload()
        await asyncio.sleep(seconds)
        for pid in _engines() - before if new else {self._pid()}:
            self._signal(pid, signal.SIGKILL)

    @precondition(lambda self: not self.unloaded)
    @rule()
    def unload(self) -> None:
        self.unloaded = True
        self.runner.run(self._unload())

    async def _unload(self) -> None:
        await self._changed()
        with suppress(ModelNotFound):  # the load before it failed
            await self.server.manager.unload("m")

    async def _changed(self) -> None:
        changes, self.changes = self.changes, []
        with suppress(LoadError):  # its engine was killed
            await asyncio.gather(*changes)

    # Preconditions look at what the machine did alone: Hypothesis wants the same rules for the same steps.

    @precondition(lambda self: not (self.stalled or self.unloaded))
    @rule()
    def kill_engine(self) -> None:
        self._signal(self._pid(), signal.SIGKILL)

    @precondition(lambda self: not (self.stalled or self.unloaded))
    @rule()
    def stall_engine(self) -> None:
        self.stalled, self.stopped = True, self._pid()
        self._signal(self.stopped, signal.SIGSTOP)

    @precondition(lambda self: self.stalled)
    @rule()
    def wake_engine(self) -> None:
        self.stalled = False
        self._signal(self.stopped, signal.SIGCONT)

    def _pid(self) -> int:
        """Of the engine that serves; 0 between two, or when the graph could not be loaded."""
        try:
            return self.engine.pid
        except OvserveError:
            return 0

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
        answers = await asyncio.gather(*self.pending)
        for answer in answers:
            streamed = answer.headers["content-type"].startswith("text/event-stream")
            ends = answer.text.count("data: [DONE]") + answer.text.count('data: {"error"')
            assert ends == 1 if streamed else answer.json(), answer.text[-300:]
        metrics, manager = self.metrics, self.server.manager
        await eventually(lambda: metrics.running == 0)  # readers who read nothing still wait
        for status, writer in self.readers:
            writer.transport.abort()
            await asyncio.wait({status})
        await self._changed()
        await manager.load("m", self.graph)
        await eventually(lambda: manager.engines == 1)
        ended = metrics.finished + sum((metrics.failed + metrics.cancelled + metrics.refused).values())
        assert sum(metrics.accepted.values()) == ended
        meter = metrics.meter
        assert (meter.queued, meter.queued_tokens, meter.in_engine, self.engine.in_flight) == (0, 0, 0, 0)
        assert not self.engine.on_room
        for _ in range(5):  # an engine that a busy machine holds up for 1 s is replaced
            last = await self.client.post("/v3/completions", json={"model": "m", "prompt": "hi"}, timeout=230)
            if last.status_code == 200:
                break
        assert last.json()["choices"][0]["text"] == "one two"


def _engines() -> set[int]:
    """Pids of all engine processes of this process."""
    mine = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    engines = set()
    for pid in mine:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            if b"ovserve.engine.worker.main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                engines.add(int(pid))
    return engines


def machine(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        Server,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            phases=[
                Phase.generate
            ],  # a shorter example of what depends on timing proves nothing, and took 80 minutes
            report_multiple_bugs=False,
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
