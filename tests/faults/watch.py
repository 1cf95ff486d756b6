"""Watching a server from outside while it is hurt: how long `/v2/health/live` takes at worst, how long a
neighbour's stream is silent, what its processes take. The figures of docs/reliability.md are these."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from ovserve.engine.host.memory import cpu_seconds
from tests.conftest import Server

PAUSE = 0.02  # seconds between two looks


@dataclass
class Figures:
    live: float = 0.0  # seconds, the longest wait for an answer
    gap: float = 0.0  # seconds, the longest silence of the neighbour's stream
    peak: dict[int, int] = field(default_factory=dict)  # bytes, by process
    cpu: dict[int, float] = field(default_factory=dict)  # seconds, by process
    neighbours: int = 0  # streams of the neighbour that ended well

    def line(self, name: str) -> str:
        return (
            f"{name}: live {self.live * 1000:.0f} ms, silence {self.gap:.2f} s, "
            f"CPU {sum(self.cpu.values()):.1f} s, largest process {max(self.peak.values(), default=0) >> 20} MB"
        )


@contextmanager
def watched(server: Server, model: str) -> Iterator[Figures]:
    """Until the block ends. Raises what goes wrong for the neighbour."""
    figures, over, faults = Figures(), threading.Event(), []

    def watching(look: object) -> None:
        with httpx.Client(base_url=server.url, timeout=230) as http:
            while not over.is_set():
                try:
                    look(http)  # type: ignore[operator]
                except (httpx.HTTPError, AssertionError) as error:
                    faults.append(error)
                    return
                over.wait(PAUSE)

    def live(http: httpx.Client) -> None:
        began = time.monotonic()
        assert http.get("/v2/health/live").status_code == 200
        figures.live = max(figures.live, time.monotonic() - began)

    def neighbour(http: httpx.Client) -> None:
        body = {
            "model": model,
            "prompt": "Once upon a time",
            "max_tokens": 60,
            "stream": True,
            "ignore_eos": True,
        }
        with http.stream("POST", "/v3/completions", json=body) as answer:
            last = 0.0
            for line in answer.iter_lines():
                if not line.startswith("data: "):
                    continue
                now = time.monotonic()
                figures.gap = max(figures.gap, now - last if last else 0.0)
                last = now
                if line == "data: [DONE]":
                    figures.neighbours += 1
                    return
                assert "error" not in json.loads(line.removeprefix("data: ")), line
        raise AssertionError("the neighbour's stream has no end")

    def processes(_: httpx.Client) -> None:
        for pid in children(server):
            with suppress(OSError, ValueError, IndexError):  # it has ended
                status = Path(f"/proc/{pid}/status").read_text()
                peak = int(status.partition("VmHWM:")[2].split()[0]) << 10
                figures.peak[pid] = max(figures.peak.get(pid, 0), peak)
                used = cpu_seconds(pid)
                figures.cpu[pid] = max(figures.cpu.get(pid, 0.0), used or 0.0)

    threads = [threading.Thread(target=watching, args=(look,)) for look in (live, neighbour, processes)]
    for thread in threads:
        thread.start()
    try:
        yield figures
    finally:
        over.set()
        for thread in threads:
            thread.join(120)
    assert not faults, faults


def children(server: Server) -> list[int]:
    """Pids of all child processes, those that only compile grammars included."""
    pid = server.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def grammar_processes(server: Server) -> list[int]:
    found = []
    for pid in children(server):
        with suppress(OSError):
            if b"\0grammars\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found
