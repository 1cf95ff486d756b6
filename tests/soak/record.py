"""The samples: a row every few seconds of what could grow."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass

from tests.bench.processes import memory
from tests.conftest import Server
from tests.soak.site import descriptors, engine_of_model
from tests.soak.traffic import Traffic


@dataclass(frozen=True)
class Sample:
    minutes: float  # since the first
    server_mb: float
    engine_mb: float
    server_descriptors: float
    engine_descriptors: float
    latency_ms: float | None  # median to the first word; None: no stream began in this time


async def record(server: Server, traffic: Traffic, every: float) -> list[Sample]:
    """Until the traffic's time is over. Raises RuntimeError when the engine of the model is replaced."""
    began, pid, samples = time.monotonic(), engine_of_model(server), list[Sample]()
    while time.monotonic() < traffic.until:
        await asyncio.sleep(min(every, max(0.0, traffic.until - time.monotonic())))
        if engine_of_model(server) != pid:
            raise RuntimeError("the engine of the model was replaced: it died, or a reload took it")
        latencies = traffic.taken()
        samples.append(
            Sample(
                (time.monotonic() - began) / 60,
                memory(server.process.pid)[0],
                memory(pid)[0],
                descriptors(server.process.pid),
                descriptors(pid),
                statistics.median(latencies) * 1000 if latencies else None,
            )
        )
    return samples
