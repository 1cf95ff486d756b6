"""One round of one side, measured; and what a pair of rounds says. Used by `compare.py`, `starts.py`
and `report.py`.

A round is `concurrency * waves` requests of `tokens` tokens each, in a closed loop. Both sides of a pair get
the same prompts, which no other round gets.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks import client
from benchmarks.processes import BareEngine, LeastServer, cost, machine_busy
from tests.conftest import Server

PROMPT_TOKENS = 128


@dataclass
class Round:
    """One side at one concurrency. Times in seconds; CPU in microseconds per generated token."""

    side: str
    concurrency: int
    tokens_per_second: float
    first_token: float  # median over requests
    second_token: float  # after the first; median over requests
    gap_p50: float
    gap_p99: float
    events_per_token: float
    engine_cpu: float
    others_cores: float  # cores kept busy by processes that are not ours
    idle_engine_cores: float  # cores used by the engine whose turn it is not
    server_cpu: float = 0.0
    client_cpu: float = 0.0
    server_sleeps: float = 0.0  # per token
    client_reads: float = 0.0  # per token

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Sides:
    """The running sides. Only one is ever given work."""

    bare: BareEngine
    server: Server | LeastServer
    engine_pid: int

    def bare_round(self, prompts: list[str], concurrency: int, tokens: int) -> Round:
        before, others = cost(self.bare.pid), _Others([self.bare.pid, self.engine_pid])
        answers = self.bare.run(prompts, concurrency, tokens)
        used, (foreign, idle) = cost(self.bare.pid) - before, others.stop(self.engine_pid)
        _exactly("tokens of the bare engine", {len(a["times"]) for a in answers}, tokens)
        return _round(
            "bare", concurrency, [(a["sent"], a["times"]) for a in answers], tokens, used.cpu, foreign, idle
        )

    def server_round(self, prompts: list[str], concurrency: int, tokens: int) -> Round:
        pid = self.server.process.pid
        requests = [client.request(self.server.port, p, tokens) for p in prompts]
        watched = [pid, self.engine_pid, self.bare.pid]
        before, engine, others = cost(pid), cost(self.engine_pid), _Others(watched)
        answers, client_cpu = run_client(self.server.port, requests, concurrency)
        used, engine_used = cost(pid) - before, cost(self.engine_pid) - engine
        foreign, idle = others.stop(self.bare.pid)
        _exactly("prompt_tokens", {a.prompt_tokens for a in answers}, PROMPT_TOKENS)
        _exactly("completion_tokens", {a.completion_tokens for a in answers}, tokens)
        total = len(answers) * tokens
        result = _round(
            "server",
            concurrency,
            [(a.sent, a.times) for a in answers],
            tokens,
            engine_used.cpu,
            foreign,
            idle,
        )
        result.server_cpu = used.cpu / total * 1e6
        result.server_sleeps = used.sleeps / total
        result.client_cpu = client_cpu / total * 1e6
        result.client_reads = sum(a.reads for a in answers) / total
        return result


def run_client(port: int, requests: list[bytes], concurrency: int) -> tuple[list[client.Answer], float]:
    """Run on uvloop if it is installed: the client should cost as little as it can."""
    with asyncio.Runner(loop_factory=client.new_event_loop) as runner:
        began = time.process_time()
        answers = runner.run(client.run(port, requests, concurrency))
        seconds = time.process_time() - began
    for answer in answers:
        answer.read()
    return answers, seconds


class _Others:
    """The load of the rest of the machine while a round runs."""

    def __init__(self, ours: Iterable[int]) -> None:
        self._ours = list(ours)
        self._began = time.monotonic()
        self._busy = machine_busy()
        self._cpu = {pid: cost(pid).cpu for pid in self._ours}
        self._own = time.process_time()

    def stop(self, idle_pid: int) -> tuple[float, float]:
        seconds = time.monotonic() - self._began
        used = {pid: cost(pid).cpu - before for pid, before in self._cpu.items()}
        ours = sum(used.values()) + time.process_time() - self._own
        foreign = (machine_busy() - self._busy - ours) / seconds
        return max(0.0, foreign), used[idle_pid] / seconds


def _round(
    side: str,
    concurrency: int,
    answers: list[tuple[float, list[float]]],
    tokens: int,
    engine_cpu: float,
    foreign: float,
    idle: float,
) -> Round:
    began, ended = min(sent for sent, _ in answers), max(times[-1] for _, times in answers)
    total = len(answers) * tokens
    gaps = sorted(b - a for _, times in answers for a, b in itertools.pairwise(times))
    return Round(
        side=side,
        concurrency=concurrency,
        tokens_per_second=total / (ended - began),
        first_token=median(times[0] - sent for sent, times in answers),
        second_token=median(times[1] - times[0] for _, times in answers),
        gap_p50=median(gaps),
        gap_p99=gaps[int(len(gaps) * 0.99)],
        events_per_token=sum(len(times) for _, times in answers) / total,
        engine_cpu=engine_cpu / total * 1e6,
        others_cores=foreign,
        idle_engine_cores=idle,
    )


def _exactly(what: str, found: set[int], wanted: int) -> None:
    if found != {wanted}:
        raise RuntimeError(f"{what}: expected {wanted} in every answer, got {sorted(found)}")
