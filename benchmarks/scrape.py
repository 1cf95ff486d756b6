"""Measures what an endpoint picker costs: CPU of the server process for each scrape, 20 a second over one connection.

    python -m benchmarks.scrape [--models 1 6] [--seconds 10]

Prints a row for each number of models. What the idle server uses in the same time is taken off. Models are
scripted: their families are those of language models, whatever computes them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from benchmarks.processes import cost
from tests.conftest import script_graph, start_process
from tests.ports import free_port

PER_SECOND = 20
SCRIPT = '{"replies": [{"text": "one two three"}]}'


# What an endpoint picker of llm-d reads.
PICKER = "vllm:num_requests_waiting,vllm:num_requests_running,vllm:kv_cache_usage_perc,vllm:cache_config_info"


def measure(models: int, seconds: float, *flags: str) -> str:
    with tempfile.TemporaryDirectory() as made:
        for number in range(models):
            script_graph(Path(made) / f"m{number}", SCRIPT)
        port = free_port()
        server = start_process("--graphs_dir", made, "--metrics_port", str(port), *flags)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
                for number in range(models):  # an answer each, so that no histogram is empty
                    body = {"model": f"m{number}", "messages": [{"role": "user", "content": "hi"}]}
                    httpx.post(f"{server.v3}/chat/completions", json=body).raise_for_status()
                idle = spent(server.process.pid, lambda: None, seconds)
                pages = []
                busy = spent(server.process.pid, lambda: pages.append(client.get("/metrics")), seconds)
        finally:
            server.stop()
    each = (busy - idle) / len(pages)
    size, lines = len(pages[-1].content), pages[-1].text.count("\n")
    share = each * PER_SECOND
    return f"| {models} | {lines:,} | {size / 1000:.0f} | {each * 1000:.2f} | {share:.1%} |"


def spent(pid: int, act: Callable[[], object], seconds: float) -> float:
    """Return the seconds of CPU of a process while `act` is done PER_SECOND times a second."""
    before, start = cost(pid), time.monotonic()
    for turn in range(int(seconds * PER_SECOND)):
        time.sleep(max(0.0, start + turn / PER_SECOND - time.monotonic()))
        act()
    return (cost(pid) - before).cpu


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=int, nargs="+", default=[1, 6])
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    print("| models | lines | kB | ms of CPU per scrape | of a core, at 20 a second |")
    print("|---|---|---|---|---|")
    for models in arguments.models:
        print(measure(models, arguments.seconds), flush=True)
    print(measure(1, arguments.seconds, "--metrics_list", PICKER), "with --metrics_list of the four families")


if __name__ == "__main__":
    main()
