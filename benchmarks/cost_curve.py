"""Measures what the server itself spends, over an engine that answers from a script. `make bench-cost`, 4 minutes.

    python -m benchmarks.cost_curve [--streams 1,2,8,32,64,128,256,512] [--rounds 3] [--picture FILE.svg]
                                    [--idle 10000] [--graphs 1,10,100]

The scripted engine computes nothing, so the machine is the server's, its engine's and the client's. Tables:

- CPU time of the server's process per token, by the number of streams. A step lasts so long that the server
  has no backlog, in which it would send several tokens at once and look cheaper
- requests per second with answers of one token, the load of a classifier, and CPU time per request
- memory and CPU time of idle connections that were used once
- memory, start and CPU time per call of a server with that many graphs
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import platform
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import client, many_models, processes
from benchmarks.idle import REST_SECONDS, SPARE, idle_connections
from tests.conftest import Server, script_graph, start_server

TOKENS = 32  # of an answer; one step each
PROMPT = "one two three four five six seven eight"
STEP_SECONDS, STEP_PER_STREAM = 0.01, 0.0003  # of a step: a third of it is the server's
SHORT_CLIENTS, SHORT_REQUESTS = (1, 8, 64), 3000
CALLS = 1000
SENDS, CHUNK = 50, b"." * 250  # times, to each; about the bytes of an event
WIDTH, HEIGHT, LEFT, BASE, TOP = 700, 300, 60, 240, 50  # of the picture, in pixels


@dataclass
class Point:
    streams: int
    cpu: list[float]  # microseconds per token, by round
    sending: float  # of that as much as a bare send() of the same bytes takes
    events: float  # per token: 1.0 means no token waited for another


@contextlib.contextmanager
def scripted(step_seconds: float, *flags: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as place:
        reply = {"pieces": [" word"], "repeat": 0}
        script = json.dumps({"step_seconds": step_seconds, "replies": [reply]})
        graph = script_graph(Path(place) / "g", script)
        file = graph / "graph.pbtxt"
        file.write_text(
            file.read_text().replace('"model.script.json"', '"model.script.json" max_num_seqs: 1024')
        )
        server = start_server(graph, *flags)
        try:
            yield server
        finally:
            processes.stop_server(server)


def point(streams: int, rounds: int) -> Point:
    with scripted(STEP_SECONDS + STEP_PER_STREAM * streams) as server:
        pid = server.process.pid
        requests = [client.request(server.port, PROMPT, TOKENS)] * streams
        _ask(server, requests, streams)
        cpu, events = [], 0.0
        for _ in range(rounds):
            before = processes.cost(pid).cpu
            answers = _ask(server, requests * 2, streams)
            total = sum(answer.completion_tokens for answer in answers)
            cpu.append((processes.cost(pid).cpu - before) / total * 1e6)
            events = sum(len(answer.times) for answer in answers) / total
    return Point(streams, cpu, bare_send(streams), events)


def _ask(server: Server, requests: Sequence[bytes], streams: int) -> list[client.Answer]:
    with asyncio.Runner(loop_factory=client.new_event_loop) as runner:
        answers = runner.run(client.run(server.port, list(requests), streams))
    for answer in answers:
        answer.read()
    return answers


def short_answers() -> list[str]:
    rows = ["| clients | answers of one token, per second | server CPU, us each |", "|--:|--:|--:|"]
    with scripted(0.0) as server:
        pid = server.process.pid
        for clients in SHORT_CLIENTS:
            requests = [client.request(server.port, PROMPT, 1)] * (SHORT_REQUESTS if clients > 1 else 1000)
            _ask(server, requests[:200], clients)
            before, began = processes.cost(pid).cpu, time.monotonic()
            count = len(_ask(server, requests, clients))
            seconds, used = time.monotonic() - began, processes.cost(pid).cpu - before
            rows.append(f"| {clients} | {count / seconds:.0f} | {used / count * 1e6:.0f} |")
    return rows


def idle(count: int) -> list[str]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and count + SPARE > most:
        return [f"{count} idle connections: a process may have {most} descriptors here"]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the server inherits it
    rows = ["| idle connections | server memory, MB | CPU at rest, % of a core | server CPU, us/token |"]
    rows.append("|--:|--:|--:|--:|")
    with scripted(0.02, "--max_connections", str(count + SPARE)) as server:
        pid = server.process.pid
        requests = [client.request(server.port, PROMPT, TOKENS)] * 32
        _ask(server, requests, 8)
        for held in (0, count):
            with idle_connections(server.port, held):
                before = processes.cost(pid).cpu
                time.sleep(REST_SECONDS)
                resting = processes.cost(pid).cpu
                answers = _ask(server, requests, 8)
                used = processes.cost(pid).cpu - resting
                memory, _ = processes.memory(pid)
            total = sum(answer.completion_tokens for answer in answers)
            share = (resting - before) / REST_SECONDS * 100
            rows.append(f"| {held:,} | {memory:.0f} | {share:.2f} | {used / total * 1e6:.0f} |")
    return rows


def graphs(counts: Sequence[int]) -> list[str]:
    rows = ["| graphs | start until all are ready, s | server memory, MB | server CPU, ms per call |"]
    rows.append("|--:|--:|--:|--:|")
    for count in counts:
        with tempfile.TemporaryDirectory() as place, many_models.served(Path(place), count) as made:
            pid = made.server.process.pid
            made.calls(CALLS // 10)
            before = processes.cost(pid).cpu
            made.calls(CALLS)
            each = (processes.cost(pid).cpu - before) / (CALLS + 100) * 1e3  # 100 of one client come first
            rows.append(f"| {count} | {made.seconds:.1f} | {processes.memory(pid)[0]:.0f} | {each:.2f} |")
    return rows


async def _swallow(server_port: asyncio.Queue[int]) -> None:
    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4096):
            pass
        writer.close()

    listening = await asyncio.start_server(read, "127.0.0.1", 0)
    await server_port.put(listening.sockets[0].getsockname()[1])
    await listening.serve_forever()


def bare_send(streams: int) -> float:
    """Return the CPU time of one send() of a chunk to a waiting process, in microseconds."""
    there, here = os.pipe()
    child = os.fork()
    if not child:

        async def serve() -> None:
            port: asyncio.Queue[int] = asyncio.Queue()
            swallowing = asyncio.create_task(_swallow(port))
            os.write(here, b"%d\n" % await port.get())
            await swallowing

        asyncio.run(serve())
    try:
        port = int(os.read(there, 16))
        with contextlib.ExitStack() as stack:
            sockets = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(streams)
            ]
            began = time.process_time()
            for _ in range(SENDS):
                for one in sockets:
                    one.send(CHUNK)
                time.sleep(STEP_SECONDS + STEP_PER_STREAM * streams)
            return (time.process_time() - began) / SENDS / streams * 1e6
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def curve(points: Sequence[Point]) -> list[str]:
    rows = ["| streams | server CPU, us/token | min..max | of that send() | events per token |"]
    rows.append("|--:|--:|--:|--:|--:|")
    return rows + [
        f"| {p.streams} | {median(p.cpu):.0f} | {min(p.cpu):.0f}..{max(p.cpu):.0f} | {p.sending:.0f} "
        f"| {p.events:.2f} |"
        for p in points
    ]


def draw(points: Sequence[Point], told: str) -> str:
    """Return the curve as SVG: streams on a logarithmic axis, microseconds on a linear one from 0."""
    most = max(median(p.cpu) for p in points) * 1.1
    last = math.log2(max(2, points[-1].streams))
    places = [
        (LEFT + (WIDTH - LEFT - 40) * math.log2(p.streams) / last, BASE - (BASE - TOP) * median(p.cpu) / most)
        for p in points
    ]
    style = "text{font:13px system-ui,sans-serif;fill:#1f2328}.small{font-size:12px;fill:#656d76}"
    style += "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}}"
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="CPU time of the server per token by the number of streams">',
        f"<style>{style}</style>",
        '<text x="24" y="28" font-weight="600">CPU time of the server per token, in microseconds</text>',
        f'<polyline fill="none" stroke="#2f6feb" stroke-width="2" points="{path}"/>',
        f'<line x1="{LEFT - 16}" x2="{WIDTH - 24}" y1="{BASE}" y2="{BASE}" stroke="#8c959f"/>',
    ]
    for p, (x, y) in zip(points, places, strict=True):
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#2f6feb"/>')
        value = f"{median(p.cpu):.0f}"
        out.append(f'<text class="small" text-anchor="middle" x="{x:.1f}" y="{y - 10:.1f}">{value}</text>')
        out.append(f'<text text-anchor="middle" x="{x:.1f}" y="{BASE + 20}">{p.streams}</text>')
    out.append(f'<text class="small" x="24" y="{HEIGHT - 14}">streams; {told}</text>')
    return "\n".join([*out, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost_curve")
    parser.add_argument("--streams", default="1,2,8,32,64,128,256,512")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--picture", type=Path, help="write the curve as SVG to this file")
    parser.add_argument("--idle", type=int, default=10_000, help="idle connections; 0: leave them out")
    parser.add_argument("--graphs", default="1,10,100", help="numbers of graphs; empty: leave them out")
    chosen = parser.parse_args()
    processes.exit_on_sigterm()
    began = time.monotonic()
    points = [point(int(n), chosen.rounds) for n in chosen.streams.split(",")]
    print("\n".join([*curve(points), "", *short_answers(), ""]), flush=True)
    if chosen.idle:
        print("\n".join([*idle(chosen.idle), ""]), flush=True)
    if chosen.graphs:
        print("\n".join([*graphs([int(n) for n in chosen.graphs.split(",")]), ""]), flush=True)
    told = f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, Python {platform.python_version()}"
    if chosen.picture:
        chosen.picture.write_text(draw(points, f"make bench-cost, {told}"))
    command = " ".join(["python -m benchmarks.cost_curve", *sys.argv[1:]])
    print(f"Made by `{command}` on {told}, in {time.monotonic() - began:.0f} s.")


if __name__ == "__main__":
    main()
