"""Measure what the console costs a server: `python -m benchmarks.console`.

A scripted engine answers at once, so that the server process is what is measured. Three servers take turns:
without the console, with it and untouched, and with it while a browser's streams are open: the counters of
the graph, the requests in progress and the log of requests. It reports the seconds to ready
and the memory of the server process then, and its processor time for each streamed token at full speed. The
last two columns are the part of a core that it takes at a steady 400 tokens per second, and when idle.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx

from ovserve.engine.host.memory import cpu_seconds, resident
from tests.conftest import Server, start_process
from tests.console.stage import five_nodes

TOKENS = 4000
STEADY, STEPS = 8, 50  # requests at a time, and steps per second: 400 tokens per second
SECONDS = 4
REPLY = {"text": "word ", "repeat": TOKENS, "burst": 1}
SCRIPT = {
    "step_seconds": 0.0,
    "replies": [{"match": "steady", "step_seconds": 1 / STEPS, **REPLY}, {"match": "", **REPLY}],
    "max_length": 100_000,
}
KINDS = ("off", "on", "watched")
WATCHED = ("graphs/m/live", "running", "requests")


def stream(server: Server, text: str = "go", tokens: int = TOKENS) -> int:
    body = {
        "model": "m",
        "stream": True,
        "max_tokens": tokens,
        "messages": [{"role": "user", "content": text}],
    }
    with httpx.stream("POST", f"{server.v3}/chat/completions", json=body, timeout=60) as answer:
        return sum(chunk.count(b'"content":"word') for chunk in answer.iter_raw())


def steady(server: Server) -> float:
    """Return the part of a core in per cent while requests stream at a fixed speed."""
    threads = [
        threading.Thread(target=stream, args=(server, "steady", SECONDS * STEPS)) for _ in range(STEADY)
    ]
    before, start = cpu(server), time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (cpu(server) - before) / (time.monotonic() - start) * 100


def cpu(server: Server) -> float:
    return cpu_seconds(server.process.pid) or 0.0


def watch(server: Server, path: str, until: threading.Event) -> None:
    url = f"{server.url}/console/api/{path}"
    with suppress(httpx.TransportError), httpx.stream("GET", url, timeout=60) as live:
        for _ in live.iter_lines():
            if until.is_set():
                return


def once(folder: Path, kind: str) -> dict[str, float]:
    began = time.monotonic()
    server = start_process("--graphs_dir", str(folder), "--console", "off" if kind == "off" else "on")
    done = threading.Event()
    try:
        ready = time.monotonic() - began
        memory = resident(server.process.pid) / 1e6
        stream(server)  # warm
        if kind == "watched":
            for path in WATCHED:
                threading.Thread(target=watch, args=(server, path, done), daemon=True).start()
            time.sleep(0.7)
        before, start = cpu(server), time.monotonic()
        tokens = sum(stream(server) for _ in range(5))
        spent = cpu(server) - before
        rate = tokens / (time.monotonic() - start)
        at_work = steady(server)
        before = cpu(server)
        time.sleep(2)
        idle = (cpu(server) - before) / 2 * 100
    finally:
        done.set()
        server.stop()
    return {
        "ready s": ready,
        "memory MB": memory,
        "us per token": spent / tokens * 1e6,
        "tokens/s": rate,
        "steady %": at_work,
        "idle %": idle,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds: int = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        five_nodes(folder / "m")
        (folder / "m/model.script.json").write_text(json.dumps(SCRIPT))
        found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
        for _ in range(rounds):
            for kind in KINDS:
                found[kind].append(once(folder, kind))
    for kind, runs in found.items():
        values = {what: statistics.median(run[what] for run in runs) for what in runs[0]}
        print(f"{kind:8}", "  ".join(f"{what} {value:.2f}" for what, value in values.items()))


if __name__ == "__main__":
    main()
