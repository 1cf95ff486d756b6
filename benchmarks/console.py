"""Measure what the console costs a server: `python -m benchmarks.console`.

A scripted engine answers at once, so that the server process is what is measured. Three servers take turns: without the
console, with it and untouched, and with it while a browser's stream of the graph's counters is open. Reported are the
seconds to ready and the memory of the server process then, and its processor time for each streamed token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path

import httpx

from ovserve.engine.host.memory import cpu_seconds, resident
from tests.conftest import Server, start_process
from tests.console.stage import five_nodes

TOKENS = 4000
SCRIPT = {
    "step_seconds": 0.0,
    "replies": [{"match": "", "text": "word ", "repeat": TOKENS, "burst": 1}],
    "max_length": 100_000,
}
KINDS = ("off", "on", "watched")


def stream(server: Server) -> int:
    body = {
        "model": "m",
        "stream": True,
        "max_tokens": TOKENS,
        "messages": [{"role": "user", "content": "go"}],
    }
    with httpx.stream("POST", f"{server.v3}/chat/completions", json=body, timeout=60) as answer:
        return sum(chunk.count(b'"content":"word') for chunk in answer.iter_raw())


def watch(server: Server, until: threading.Event) -> None:
    with httpx.stream("GET", f"{server.url}/console/api/graphs/m/live", timeout=60) as live:
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
            threading.Thread(target=watch, args=(server, done), daemon=True).start()
            time.sleep(0.7)
        before, start = cpu_seconds(server.process.pid) or 0.0, time.monotonic()
        tokens = sum(stream(server) for _ in range(5))
        spent = (cpu_seconds(server.process.pid) or 0.0) - before
        rate = tokens / (time.monotonic() - start)
        before = cpu_seconds(server.process.pid) or 0.0
        time.sleep(3)
        idle = ((cpu_seconds(server.process.pid) or 0.0) - before) / 3 * 100
    finally:
        done.set()
        server.stop()
    return {
        "ready s": ready,
        "memory MB": memory,
        "us per token": spent / tokens * 1e6,
        "tokens/s": rate,
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
