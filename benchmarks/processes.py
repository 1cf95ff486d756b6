"""The processes of a comparison: how they start, what they cost, and that they end.

Used by `compare.py`, `idle.py`, `peers.py` and `profiling.py`. Every process is ended by its own pid.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from ovserve.calculators.shipped import MODULES
from ovserve.graph import Registry
from ovserve.kinds.text.options import parse_llm_options
from ovserve.serving.loader import check_graph
from tests.conftest import ROOT, Server, start_server

GRAPH = ROOT / "graphs/smollm2"


@dataclass
class Cost:
    """The resources a process has used so far, or between two samples (`later - earlier`)."""

    cpu: float  # seconds, user and system, all threads
    sleeps: int  # times the main thread went to sleep, so also times it was woken
    preempted: int

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.cpu - other.cpu, self.sleeps - other.sleeps, self.preempted - other.preempted)


def cost(pid: int) -> Cost:
    # The kernel's CPU clock of another process: what /proc/PID/stat has, in nanoseconds instead of ticks.
    cpu = time.clock_gettime((~pid << 3) | 2)
    status = _status(pid)
    return Cost(cpu, status["voluntary_ctxt_switches"], status["nonvoluntary_ctxt_switches"])


def memory(pid: int) -> tuple[float, float]:
    """Resident now and at most, in MB (10**6 bytes)."""
    status = _status(pid)
    return status["VmRSS"] * 1024 / 1e6, status["VmHWM"] * 1024 / 1e6


def _status(pid: int) -> dict[str, int]:
    lines = (line.partition(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        name: int(words[0]) for name, _, value in lines if (words := value.split()) and words[0].isdigit()
    }


def machine_busy() -> float:
    """CPU seconds of all processes together since boot."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _wait, irq, softirq, steal = ticks
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def spec_of_graph(directory: Path = GRAPH) -> dict[str, Any]:
    """The TextSpec the server makes of the graph."""
    graph, nodes = check_graph(directory, Registry(MODULES))
    graph.close()
    (node,) = nodes.values()
    return msgspec.to_builtins(parse_llm_options(node).spec)


class BareEngine:
    """The child of `bare.py`."""

    def __init__(self, spec: dict[str, Any]) -> None:
        began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bare"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self.load_seconds = self._ask(spec)["load_seconds"]
        except BaseException:
            self.stop()
            raise
        self.start_seconds = time.monotonic() - began
        self.pid = self.process.pid

    def prompts(self, count: int, tokens: int, seed: int) -> list[str]:
        return self._ask({"op": "prompts", "count": count, "tokens": tokens, "seed": seed})

    def known(self, prompt: str) -> None:
        self._ask({"op": "known", "text": prompt})

    def run(self, prompts: list[str], concurrency: int, tokens: int) -> list[dict[str, Any]]:
        return self._ask({"op": "run", "prompts": prompts, "concurrency": concurrency, "tokens": tokens})

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def _ask(self, question: object) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the bare engine ended, exit status {self.process.wait()}")
        return json.loads(answer)


class LeastServer:
    """The server of `text_least.py`, and the process of its engine."""

    def __init__(self, spec: dict[str, Any]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        command = [sys.executable, "-m", "benchmarks.text_least", json.dumps(spec), str(self.port)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the least server ended, exit status {self.process.wait()}")
        self.engine_pid = int(line)
        self._wait()

    def _wait(self) -> None:
        """Wait until it accepts connections."""
        deadline = time.monotonic() + 10
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            if time.monotonic() > deadline:
                raise RuntimeError("the least server does not listen")
            time.sleep(0.05)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def exact_prompts(count: int, tokens: int, seed: int) -> list[str]:
    """Used by benchmarks without a bare side."""
    bare = BareEngine(spec_of_graph())
    try:
        return bare.prompts(count, tokens, seed)
    finally:
        bare.stop()


def timed_server(directory: Path = GRAPH) -> tuple[Server, float]:
    """The server, and the seconds from spawn to ready."""
    before, began = _children(), time.monotonic()
    try:
        server = start_server(directory)
    except BaseException:  # a signal while it loads: no other code knows the process yet
        for pid in _children() - before:
            os.kill(pid, signal.SIGKILL)
        raise
    return server, time.monotonic() - began


def _children() -> set[int]:
    tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text().split()}


def stop_server(server: Server) -> None:
    """SIGTERM, then SIGKILL; the engine ends with its server."""
    try:
        server.stop(timeout=10)
    except subprocess.TimeoutExpired:
        server.process.wait()


def exit_on_sigterm() -> None:
    """Raise on SIGTERM, so that `finally` clauses run and no process is left."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def on_last_core(pid: int, log: Callable[[str], None]) -> None:
    last = max(os.sched_getaffinity(0))
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), {last})
    log(f"pid {pid} pinned to core {last}")
