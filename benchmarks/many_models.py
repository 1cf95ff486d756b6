"""Measures what many small models cost in one server: start, memory, calls, scrapes, a reload and a kill -9.

    python -m benchmarks.many_models [--models 100] [--isolation shared|process]

Prints the rows of benchmarks/measurements.md. The models are those of `small_kind/`, over the real runtime.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import httpx

from benchmarks.processes import cost, memory
from benchmarks.small_kind.calculator import GRAPH
from tests.conftest import ROOT, Server, start_process

CLIENTS = 8
CALLS = 1000
ENTRY = "[ovserve.calculators]\nadd_one = benchmarks.small_kind.calculator\n"


@contextmanager
def served(directory: Path, models: int, isolation: str = "shared") -> Iterator[Served]:
    """Serve that many models from this directory, which is empty."""
    installed = directory / "site/small_kind-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: small_kind\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(ENTRY)
    graphs = directory / "graphs"
    write = "import sys; from pathlib import Path; from benchmarks.small_kind.backend import write; "
    write += "[write(Path(d) / 'model.xml', float(n)) for n, d in enumerate(sys.argv[1:])]"
    names = [f"m{n:03}" for n in range(models)]
    for name in names:
        (graphs / name).mkdir(parents=True)
        (graphs / name / "graph.pbtxt").write_text(GRAPH.replace("ISOLATION", isolation))
    # In a process of its own, because this one has to be as the server is: without the library.
    subprocess.run([sys.executable, "-c", write, *(str(graphs / n) for n in names)], cwd=ROOT, check=True)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (str(directory / "site"), str(ROOT), before) if p)
    try:
        began = time.monotonic()
        server = start_process("--graphs_dir", str(graphs), "--metrics_enable")
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
    made = Served(server, graphs, names, 0.0)
    try:
        made.until_ready()
        made.seconds = time.monotonic() - began
        yield made
    finally:
        server.stop()


@dataclass
class Served:
    server: Server
    graphs: Path
    names: list[str]
    seconds: float  # from the spawn until all are ready

    def until_ready(self, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        with httpx.Client() as client:
            for name in self.names:
                while client.get(f"{self.server.url}/v2/models/{name}/ready").status_code != 200:
                    if time.monotonic() > end:
                        raise TimeoutError(f"{name} is not ready")
                    time.sleep(0.01)

    def processes(self) -> list[int]:
        return self.server.children("ovserve.engine.worker.main")

    def add(self, number: int, client: httpx.Client) -> None:
        """One call, checked."""
        body = {"model": self.names[number], "values": [1.0] * 10}
        answer = client.post(f"{self.server.v3}/add", json=body, timeout=30)
        answer.raise_for_status()
        assert answer.json()["values"] == [1.0 + number] * 10, answer.text

    def calls(self, count: int) -> tuple[float, float]:
        """Calls a second of CLIENTS clients over all models, and the median of one client, in ms."""
        with httpx.Client() as client:
            alone = [_seconds(partial(self.add, n % len(self.names), client)) for n in range(100)]

        def client_of(which: int) -> None:
            with httpx.Client() as client:
                for n in range(count // CLIENTS):
                    self.add((which + n * CLIENTS) % len(self.names), client)

        began = time.monotonic()
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(client_of, range(CLIENTS)))
        return count / (time.monotonic() - began), median(alone) * 1000


def _seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--isolation", choices=("shared", "process"), default="shared")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as place,
        served(Path(place), options.models, options.isolation) as made,
    ):
        pids = made.processes()
        held = sum(memory(pid)[0] for pid in pids)
        print(f"{options.models} models, isolation {options.isolation}, {len(pids)} engine processes")
        print(f"| start until all are ready, s | {made.seconds:.2f} |")
        spent = cost(made.server.process.pid).cpu, sum(cost(pid).cpu for pid in pids)
        print(f"| of that CPU of server and engines, s | {spent[0]:.1f}, {spent[1]:.1f} |")
        print(f"| engine memory, MB | {held:.0f} |")
        print(f"| server memory, MB | {memory(made.server.process.pid)[0]:.0f} |")
        rate, alone = made.calls(CALLS)
        print(f"| calls a second, {CLIENTS} clients | {rate:.0f} |")
        print(f"| one call, ms | {alone:.1f} |")
        held = sum(memory(pid)[0] for pid in pids)
        print(f"| engine memory after the calls, MB | {held:.0f} |")
        scrape = median(_seconds(lambda: httpx.get(f"{made.server.url}/metrics")) for _ in range(5))
        print(f"| one scrape of /metrics, ms | {scrape * 1000:.0f} |")
        if len(pids) == 1:
            os.kill(pids[0], signal.SIGKILL)
            with httpx.Client() as client:
                again = sum(_seconds(partial(made.add, n, client)) for n in range(options.models))
            print(f"| kill -9 until all have answered again, s | {again:.2f} |")


if __name__ == "__main__":
    main()
