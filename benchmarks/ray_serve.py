"""Cost of a token and of the first one: the bare server, and one replica behind each data plane of Ray Serve.

    python -m benchmarks.ray_serve [--streams 8] [--seconds 8]

Scripted engines, so that the difference is that of the paths. A data plane has a process of its own, because
Ray reads its environment when it is imported. Prints a table for docs/clusters.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx

from ovserve.deploy.ray.plan import HAPROXY, PYTHON
from tests.conftest import script_graph, start_server, until
from tests.deploy.ray import conftest as cluster

TOKENS, STEP = 200, 0.005
CLOCK = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(one(arguments.only, arguments.streams, arguments.seconds)))
        return
    print("| path | tokens/s | first token p50, p99 ms | CPU us per token: proxy, replica, server |")
    print("|---|---|---|---|")
    shares: list[str] = []
    for path in ("bare", PYTHON, HAPROXY):
        command = [sys.executable, "-m", "benchmarks.ray_serve", "--only", path]
        command += ["--streams", str(arguments.streams), "--seconds", str(arguments.seconds)]
        environment = os.environ | {"OVSERVE_RAY_DATA_PLANE": path if path != "bare" else PYTHON}
        told = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        row = json.loads(next(line for line in told.stdout.splitlines() if line.startswith("{")))
        cpu = ", ".join(f"{row['cpu'].get(part, 0):.0f}" for part in ("proxy", "replica", "server"))
        print(f"| {path} | {row['rate']:.0f} | {row['first']:.0f}, {row['late']:.0f} | {cpu} |", flush=True)
        shares += [f"{path} {row['controller']:.1%}"] if path != "bare" else []
    print(f"Serve's controller, of a core, for one replica: {', '.join(shares)}")


def one(path: str, streams: int, seconds: float) -> dict[str, object]:
    """Return the measurements of one path."""
    with tempfile.TemporaryDirectory() as directory:
        text = " ".join(["w"] * TOKENS)
        script_graph(Path(directory) / "words", cluster.script(STEP, text))
        if path == "bare":
            server = start_server(Path(directory) / "words", name="words")
            try:
                return measured(server.url, streams, seconds, {"server": [server.process.pid]})
            finally:
                server.stop()
        made = cluster.ray._get_wrapped_function()()
        ray = next(made)
        try:
            ray.deploy(cluster.plan_for(Path(directory), max_num_seqs=256))
            until(lambda: ray.servers())
            [server_pid] = ray.servers()
            proxies = [*cluster.processes("ProxyActor"), *cluster.processes("haproxy", "-f")]
            parts = {
                "controller": [*cluster.processes("ServeController")],
                "proxy": proxies,
                "replica": [cluster.parent(server_pid)],
                "server": [server_pid],
            }
            return measured(ray.url, streams, seconds, parts)
        finally:
            next(made, None)


def measured(url: str, streams: int, seconds: float, parts: dict[str, list[int]]) -> dict[str, object]:
    load(url, streams, 2.0)
    before = {part: cpu(pids) for part, pids in parts.items()}
    began = time.monotonic()
    tokens, firsts = load(url, streams, seconds)
    wall = time.monotonic() - began
    used = {part: (cpu(pids) - before[part]) / tokens * 1e6 for part, pids in parts.items()}
    late = sorted(firsts)[int(0.99 * (len(firsts) - 1))]
    share = used.get("controller", 0.0) * tokens / 1e6 / wall
    return {
        "controller": share,
        "rate": tokens / wall,
        "first": 1e3 * statistics.median(firsts),
        "late": 1e3 * late,
        "cpu": used,
    }


def cpu(pids: list[int]) -> float:
    """Return the CPU seconds of some processes."""
    total = 0.0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / CLOCK
    return total


def load(url: str, streams: int, seconds: float) -> tuple[int, list[float]]:
    """Stream answers on `streams` threads; return the tokens and the seconds to each first token. Bytes are
    counted, not parsed: the clients have the same two cores."""
    counts: list[int] = []
    firsts: list[float] = []
    until = time.monotonic() + seconds
    body = {"model": "words", "messages": [{"role": "user", "content": "go"}], "stream": True}

    def run() -> None:
        with httpx.Client(timeout=60) as client:
            while time.monotonic() < until:
                began, tokens = time.monotonic(), 0
                with client.stream("POST", f"{url}/v3/chat/completions", json=body) as answer:
                    for chunk in answer.iter_bytes():
                        if not tokens and b'"content":' in chunk:
                            firsts.append(time.monotonic() - began)
                        tokens += chunk.count(b'"content":"w') + chunk.count(b'"content":" w')
                counts.append(tokens)

    threads = [threading.Thread(target=run) for _ in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts), firsts


if __name__ == "__main__":
    main()
