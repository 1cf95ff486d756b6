"""Measures what idle connections cost busy ones. `make bench-idle`, two minutes.

    python -m benchmarks.idle [--connections 1000] [--rounds 4] [--concurrency 8] [--tokens 64]

The same load runs with and without that many idle connections, in turns whose order alternates. An idle
connection has asked once, for the health path, and is kept, like one of a client's pool; that none was closed
meanwhile is checked after each round. The server is started with room for them (`--max_connections`).
Exit status 1: they cost more than the bounds below.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from benchmarks import client, processes
from benchmarks.measure import PROMPT_TOKENS
from tests.conftest import Server, start_server

WAVES = 3  # requests per stream and round
SPARE = 100  # descriptors and connections besides the idle ones
REST_SECONDS = 3.0  # in which nothing is asked, to see what the connections alone cost
MIN_SPEED, MAX_KB = 0.97, 64.0

REQUEST = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass
class Measured:
    """The load with so many idle connections, and the server before it and at rest."""

    idle: int
    tokens_per_second: float
    first_token: float  # ms, median over requests
    server_cpu: float  # us per token
    resting_cpu: float  # part of a core
    rss: float  # MB


@contextlib.contextmanager
def idle_connections(port: int, count: int) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        all_: list[socket.socket] = []
        for _ in range(count):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            one.sendall(REQUEST)
            answer = b""
            while b"\r\n\r\n" not in answer and (piece := one.recv(4096)):
                answer += piece
            if not answer.startswith(b"HTTP/1.1 200 "):
                raise RuntimeError(f"the server rejected idle connection {len(all_) + 1}: {answer[:300]!r}")
            one.setblocking(False)
            all_.append(one)
        yield
        closed = sum(map(_has_ended, all_))
        if closed:
            raise RuntimeError(f"the server closed {closed} of {count} idle connections in this round")


def _has_ended(connection: socket.socket) -> bool:
    try:
        while piece := connection.recv(4096):  # the end of the answer to its one request
            del piece
    except BlockingIOError:
        return False
    return True


def measure(server: Server, requests: list[bytes], concurrency: int, tokens: int, idle: int) -> Measured:
    pid = server.process.pid
    with idle_connections(server.port, idle):
        before = processes.cost(pid)
        time.sleep(REST_SECONDS)
        resting = processes.cost(pid)
        with asyncio.Runner(loop_factory=client.new_event_loop) as runner:
            answers = runner.run(client.run(server.port, requests, concurrency))
        used = processes.cost(pid) - resting
        rss, _ = processes.memory(pid)
    for answer in answers:
        answer.read()
        if (answer.prompt_tokens, answer.completion_tokens) != (PROMPT_TOKENS, tokens):
            raise RuntimeError(f"{answer.prompt_tokens} and {answer.completion_tokens} tokens")
    total = len(answers) * tokens
    seconds = max(a.times[-1] for a in answers) - min(a.sent for a in answers)
    return Measured(
        idle=idle,
        tokens_per_second=total / seconds,
        first_token=median(a.times[0] - a.sent for a in answers) * 1e3,
        server_cpu=used.cpu / total * 1e6,
        resting_cpu=(resting - before).cpu / REST_SECONDS,
        rss=rss,
    )


def table(pairs: list[tuple[Measured, Measured]]) -> list[str]:
    count = pairs[0][1].idle
    lines = [f"| measure | no others | {count:,} idle | difference | min..max |", "|---|--:|--:|--:|--:|"]

    def row(name: str, of: Callable[[Measured], float], form: str, *, ratio: bool) -> None:
        changes = [of(b) / of(a) if ratio else of(b) - of(a) for a, b in pairs]
        shown = "{:.3f}" if ratio else form.replace("{:", "{:+")
        without, with_ = (form.format(median(of(pair[i]) for pair in pairs)) for i in (0, 1))
        low, high = shown.format(min(changes)), shown.format(max(changes))
        lines.append(f"| {name} | {without} | {with_} | {shown.format(median(changes))} | {low}..{high} |")

    row("tokens/s", lambda m: m.tokens_per_second, "{:.1f}", ratio=True)
    row("first token, ms", lambda m: m.first_token, "{:.1f}", ratio=False)
    row("server CPU, us/token", lambda m: m.server_cpu, "{:.0f}", ratio=False)
    row("server CPU at rest, % of a core", lambda m: m.resting_cpu * 100, "{:.2f}", ratio=False)
    # Memory that connections took is kept for the next ones, so the first pair shows what they need.
    without, with_ = (one.rss for one in pairs[0])
    lines.append(f"| server RSS, MB (first pair) | {without:.1f} | {with_:.1f} | {with_ - without:+.1f} | |")
    return lines


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle")
    parser.add_argument("--connections", type=int, default=1000, help="idle ones (default 1000)")
    parser.add_argument("--rounds", type=int, default=4, help="pairs of rounds (default 4)")
    parser.add_argument("--concurrency", type=int, default=8, help="streams of the load (default 8)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per answer (default 64)")
    return parser.parse_args()


def main() -> int:
    chosen, began = options(), time.monotonic()
    processes.exit_on_sigterm()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if chosen.connections + SPARE > most != resource.RLIM_INFINITY:
        sys.exit(f"{chosen.connections} connections need more than the {most} descriptors of this process")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the server inherits it
    prompts = processes.exact_prompts(chosen.concurrency * WAVES, PROMPT_TOKENS, seed=7)
    pairs: list[tuple[Measured, Measured]] = []
    with contextlib.ExitStack() as stack:
        server = start_server(processes.GRAPH, "--max_connections", str(chosen.connections + SPARE))
        stack.callback(processes.stop_server, server)
        requests = [client.request(server.port, prompt, chosen.tokens) for prompt in prompts]

        def run(idle: int) -> Measured:
            return measure(server, requests, chosen.concurrency, chosen.tokens, idle)

        run(0)  # the first round makes the engine's cache grow
        for turn in range(chosen.rounds):
            order = (0, chosen.connections) if turn % 2 == 0 else (chosen.connections, 0)
            found = {idle: run(idle) for idle in order}
            pairs.append((found[0], found[chosen.connections]))
    lines = [
        *table(pairs),
        "",
        f"Made by `{' '.join(['python -m benchmarks.idle', *sys.argv[1:]])}` on {time.strftime('%Y-%m-%d')} "
        f"in {time.monotonic() - began:.0f} s: {chosen.rounds} pairs of rounds of {chosen.concurrency} streams, "
        f"{PROMPT_TOKENS} prompt tokens, {chosen.tokens} output tokens, greedy; {os.cpu_count()} cores, "
        f"Python {platform.python_version()}.",
    ]
    print("\n".join(lines))
    speed = median(b.tokens_per_second / a.tokens_per_second for a, b in pairs)
    each = (pairs[0][1].rss - pairs[0][0].rss) * 1e3 / chosen.connections
    print(f"- a connection takes {each:.1f} KB, expected at most {MAX_KB:.0f}")
    print(f"- tokens/s {speed:.3f} of those without, expected at least {MIN_SPEED}")
    return 0 if speed >= MIN_SPEED and each <= MAX_KB else 1


if __name__ == "__main__":
    sys.exit(main())
