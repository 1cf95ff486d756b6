"""`make hostile`: hostile bodies against a server of its own, and what each costs it.

For each body of `hostile_bodies.py`, at three sizes: the answer, the CPU time of the server and of its child
processes, the memory at most, and how long `/v2/health/live` waited meanwhile. Besides the wait on the clock, which
other work on the machine lengthens, there is `held`: the CPU time of the server's main thread within one such wait.
The table has the worst size of each body. The exit code is 1 if a body held the loop for longer than `--most` ms.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.hostile_bodies import BODIES, Hostile
from benchmarks.processes import cost, memory
from tests.conftest import Server, script_graph, start_server

VALUES = (15_000, 19_000, 990_000)  # below the bound of the loop, of properties, and of a body
BYTES = (1_900_000, 8_000_000, 31_000_000)  # the same for text, up to --max_body_bytes
SCRIPT = '{"max_length": 100000000, "replies": [{"text": "one two three", "repeat": 1000000}]}'
PAUSE = 0.002  # seconds between two questions
TIMEOUT = 120.0


@dataclass
class Seen:
    """The effect of one body. Times in ms, memory in MB."""

    status: int
    answer: bytes = field(repr=False)
    size: int
    server_cpu: float = 0.0
    child_cpu: float = 0.0
    server_memory: float = 0.0
    child_memory: float = 0.0
    delay: float = 0.0
    held: float = 0.0


@dataclass
class Watch:
    """Asks `/v2/health/live` until `stop` is called."""

    port: int
    pid: int
    delay: float = 0.0
    held: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        while not self._stop.is_set():
            cpu, began = main_thread(self.pid), time.perf_counter()
            connection.request("GET", "/v2/health/live")
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
            self.delay = max(self.delay, (time.perf_counter() - began) * 1000)
            self.held = max(self.held, main_thread(self.pid) - cpu)
            time.sleep(PAUSE)
        connection.close()


def main_thread(pid: int) -> float:
    """CPU time of a process's main thread in ms, to the nanosecond."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e6


@contextmanager
def watching(server: Server) -> Iterator[Watch]:
    watch = Watch(server.port, server.process.pid)
    thread = threading.Thread(target=watch.run, daemon=True)
    thread.start()
    time.sleep(0.02)
    try:
        yield watch
    finally:
        watch._stop.set()
        thread.join(TIMEOUT)


def post(server: Server, path: str, body: bytes, *, packed: bool = False) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT)
    try:
        headers = {"Content-Type": "application/json"} | ({"Content-Encoding": "gzip"} if packed else {})
        connection.request("POST", path, gzip.compress(body) if packed else body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _children(server: Server) -> dict[int, float]:
    """CPU seconds of the body and template processes by PID."""
    pids = [
        *server.children("ovserve.sandbox.bodies"),
        *server.children("ovserve.sandbox.rendering"),
    ]
    return {pid: cost(pid).cpu for pid in pids}


def attack(server: Server, path: str, body: bytes, *, packed: bool = False) -> Seen:
    """Send one body and watch the server until it has answered."""
    pid = server.process.pid
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
    children, before = _children(server), cost(pid).cpu
    with watching(server) as watch:
        status, answer = post(server, path, body, packed=packed)
    after = _children(server)
    return Seen(
        status,
        answer,
        len(body),
        (cost(pid).cpu - before) * 1000,
        sum(cpu - children.get(child, 0.0) for child, cpu in after.items()) * 1000,
        memory(pid)[1],
        max((memory(child)[1] for child in after), default=0.0),
        watch.delay,
        watch.held,
    )


def sizes(hostile: Hostile) -> tuple[int, ...]:
    return BYTES if hostile.text else VALUES


@contextmanager
def victim(*flags: str) -> Iterator[Server]:
    """A server with a scripted model, whose processes for bodies and templates are running."""
    with tempfile.TemporaryDirectory(prefix="ovserve-hostile-") as directory:
        graph = script_graph(Path(directory), SCRIPT)
        options = 'generic_tool_prompt: true\n        tool_parser: "hermes3"'  # so that it takes tools
        text = (graph / "graph.pbtxt").read_text()
        named = 'models_path: "model.script.json"'
        (graph / "graph.pbtxt").write_text(text.replace(named, f"{named}\n        {options}"))
        server = start_server(graph, *flags, name="m")
        try:
            for warm in (BODIES[1].make(300), BODIES[1].make(20_000)):
                post(server, BODIES[1].path, warm)
            yield server
        finally:
            server.stop()


HEAD = (
    "| body | MB | status | server CPU, ms | child CPU, ms | server, MB | children, MB | live waits, ms | held, ms |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def row(hostile: Hostile, seen: Seen) -> str:
    figures = (seen.server_cpu, seen.child_cpu, seen.server_memory, seen.child_memory, seen.delay, seen.held)
    columns = [hostile.name, f"{seen.size / 1e6:.1f}", str(seen.status), *(f"{f:.0f}" for f in figures)]
    return f"|{'|'.join(columns)}|"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__)
    parser.add_argument("--only", default="", help="bodies whose name contains this")
    parser.add_argument(
        "--without", action="append", default=[], help="leave out bodies whose name contains this"
    )
    parser.add_argument("--all", action="store_true", help="a row for each size")
    parser.add_argument("--most", type=float, default=100.0, help="ms that a body may hold the loop")
    arguments = parser.parse_args()
    bad = 0
    with victim() as server:
        print(HEAD, flush=True)
        for hostile in BODIES:
            if arguments.only not in hostile.name or any(w in hostile.name for w in arguments.without):
                continue
            seen = [
                attack(server, hostile.path, hostile.make(n), packed=hostile.gzip) for n in sizes(hostile)
            ]
            for one in seen if arguments.all else [max(seen, key=lambda s: s.held)]:
                print(row(hostile, one), flush=True)
                bad += one.held > arguments.most
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
