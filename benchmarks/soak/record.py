"""The samples: a row every few seconds of what could grow."""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from dataclasses import dataclass

from benchmarks.processes import cost, memory
from benchmarks.soak.site import CHAT, descriptors, engine_of, engine_of_model
from benchmarks.soak.traffic import Traffic
from tests.conftest import Server

CACHE = re.compile(rf'^ovserve_kv_cache_bytes\{{[^}}]*"{CHAT}"[^}}]*\}} (\S+)$', re.MULTILINE)


@dataclass(frozen=True)
class Sample:
    minutes: float  # since the first
    server_mb: float
    engine_mb: float
    engine_beside_cache_mb: float  # the cache is allowed to grow with the load
    server_descriptors: float
    engine_descriptors: float
    server_cpu_ms: float | None  # of each answer; None: there was none in this time
    latency_ms: float | None  # median to the first word; None: no stream began in this time
    embeddings_mb: float | None = (
        None  # their engine's, whose inputs have random lengths; None: not there now
    )
    speech_mb: float | None = None


async def record(server: Server, traffic: Traffic, every: float) -> list[Sample]:
    """Record until the traffic's time is over. An engine of the model that was replaced is a wrong answer."""
    began, samples = time.monotonic(), list[Sample]()
    engine, cpu, answers = engine_of_model(server), cost(server.process.pid).cpu, 0
    if not engine:
        raise RuntimeError("the engine of the model is not there:\n" + "".join(server.errors))
    while time.monotonic() < traffic.until:
        await asyncio.sleep(min(every, max(0.0, traffic.until - time.monotonic())))
        if (pid := engine_of_model(server)) != engine:
            if pid:
                traffic.wrong.append(f"the engine of the model is another one: {pid}, not {engine}")
                engine = pid
            continue
        latencies, used, answered = traffic.taken(), cost(server.process.pid).cpu, traffic.answers
        engine_mb = memory(engine)[0]
        samples.append(
            Sample(
                (time.monotonic() - began) / 60,
                memory(server.process.pid)[0],
                engine_mb,
                engine_mb - await _cache_mb(traffic),
                descriptors(server.process.pid),
                descriptors(engine),
                (used - cpu) * 1000 / (answered - answers) if answered > answers else None,
                statistics.median(latencies) * 1000 if latencies else None,
                _memory_of(server, "embeddings"),
                _memory_of(server, "text_to_speech"),
            )
        )
        cpu, answers = used, answered
    return samples


def _memory_of(server: Server, name: str) -> float | None:
    pid = engine_of(server, name)
    return memory(pid)[0] if pid else None


async def _cache_mb(traffic: Traffic) -> float:
    found = CACHE.search((await traffic.http.get("/metrics")).text)
    assert found, "the metrics do not have the size of the cache"
    return float(found[1]) / 1e6
