"""Twelve graphs of every kind in a server that holds a few of them, under Zipf traffic: `make soak-idle`.

    python -m benchmarks.zipf [--minutes 10] [--groups 3]

Requests are lost if one is not answered with 200, graphs are starved if one waits longer than LONGEST, and
memory has to stay flat. Prints each graph's requests, loads and longest wait. Graphs whose models are not in
models/ are left out and named.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import httpx

from benchmarks.processes import exit_on_sigterm, memory
from tests.conftest import ROOT, Server, script_graph, start_process
from tests.http.test_lora import F32, GRAPH

SKEW = 1.1  # exponent of the law
CLIENTS = 6
THINKING = 0.3  # mean seconds of a client between two requests
LONGEST = 90.0  # seconds a request may take
SAMPLE_SECONDS = 2.0
GROWTH, SLACK = 1.15, 60.0  # of memory from the second third to the last, and MB besides
MAKE = """
import sys; from pathlib import Path; from tests import lora; from tests.plain_models import write_models
from scripts.image_model import make
place = Path(sys.argv[1]); lora.model(place / "text1"); write_models(place / "plain"); make(place / "image/model")
"""


@dataclass(frozen=True)
class Graph:
    """A graph: its entry in the configuration, and a request to it."""

    entry: dict[str, Any]
    path: str
    body: dict[str, Any]


@dataclass
class Count:
    answered: int = 0
    longest: float = 0.0
    wrong: list[str] = field(default_factory=list)


def graphs(place: Path, default: Path = ROOT / "graphs/smollm2") -> dict[str, Graph]:
    """Make the models in an empty directory; return graphs by name, the most asked for first.

    `default` is the graph of the default model."""
    subprocess.run([sys.executable, "-c", MAKE, str(place)], cwd=ROOT, check=True)
    (place / "text1/graph.pbtxt").write_text(GRAPH.format(options=F32))
    found: dict[str, Graph] = {}

    def add(name: str, base: Path, path: str, body: dict[str, Any], **more: Any) -> None:
        found[name] = Graph({"name": name, "base_path": str(base), **more}, path, body)

    def text(name: str, base: Path) -> None:
        prompt = {"prompt": "hello world", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        add(name, base, "/v3/completions", {"model": name, **prompt})

    def plain(name: str, **more: Any) -> None:
        tensor = {"name": "b", "shape": [1, 10], "datatype": "FP32", "data": [1.0] * 10}
        add(name, place / "plain/dummy", f"/v2/models/{name}/infer", {"inputs": [tensor]}, **more)

    text("text1", place / "text1")
    if (ROOT / "models/minilm/openvino_model.xml").is_file():
        add(
            "embeddings",
            ROOT / "models/minilm",
            "/v3/embeddings",
            {"model": "embeddings", "input": "The sea"},
        )
    plain("plain1", isolation="process")
    if any((ROOT / "models/smollm2").glob("*.gguf")):
        text("smollm2", default)
    add("python", ROOT / "graphs/python_node", "/v3/python?model=python", {"one": "two three"})
    for name in ("text2", "text3"):
        shutil.copytree(place / "text1", place / name)
        text(name, place / name)
    picture = {"model": "image", "prompt": "the sea", "size": "64x64", "num_inference_steps": 2}
    written = (ROOT / "graphs/image_generation/graph.pbtxt").read_text()
    (place / "image/graph.pbtxt").write_text(written.replace("../../models/image", "model"))
    add("image", place / "image", "/v3/images/generations", picture)
    plain("plain2", shape={"b": "(1,10)"}, group_name="pair")
    plain("plain3", isolation="process", nireq=2, group_name="pair")
    for name in ("script1", "script2"):
        script_graph(place / name, json.dumps({"replies": [{"text": "as scripted"}]}))
        text(name, place / name)
    return found


def serve(place: Path, found: dict[str, Graph], groups: int) -> Server:
    config = place / "config.json"
    config.write_text(json.dumps({"model_config_list": [{"config": g.entry} for g in found.values()]}))
    flags = ["--config_path", str(config), "--max_loaded_groups", str(groups), "--queue_timeout", "600"]
    return start_process(*flags, "--idle_unload_timeout_seconds", "20", timeout=300)


async def traffic(url: str, found: dict[str, Graph], seconds: float) -> dict[str, Count]:
    """Ask for `seconds`, and each graph once more at the end."""
    names, counts = list(found), {name: Count() for name in found}
    weights = [1 / (rank + 1) ** SKEW for rank in range(len(names))]
    end = time.monotonic() + seconds

    async def ask(http: httpx.AsyncClient, name: str) -> None:
        graph, count, began = found[name], counts[name], time.monotonic()
        try:
            answer = await http.post(graph.path, json=graph.body)
            if answer.status_code != 200:
                count.wrong.append(f"{answer.status_code} {answer.text[:200]}")
        except httpx.HTTPError as error:
            count.wrong.append(repr(error))
        count.answered += 1
        count.longest = max(count.longest, time.monotonic() - began)

    async def client(seed: int) -> None:
        chance = random.Random(seed)
        async with httpx.AsyncClient(base_url=url, timeout=600) as http:
            while time.monotonic() < end:
                await ask(http, chance.choices(names, weights)[0])
                await asyncio.sleep(chance.expovariate(1 / THINKING))
            for name in names[seed::CLIENTS]:
                await ask(http, name)

    await asyncio.gather(*(client(seed) for seed in range(CLIENTS)))
    return counts


async def watch(server: Server, samples: list[float]) -> None:
    """Record the MB of the server and all engines, until cancelled."""
    while True:
        pids = [server.process.pid, *server.children("ovserve.engine.worker.main")]
        samples.append(sum(map(_resident, pids)))
        await asyncio.sleep(SAMPLE_SECONDS)


def _resident(pid: int) -> float:
    try:
        return memory(pid)[0]
    except (FileNotFoundError, ProcessLookupError, KeyError):  # it has ended since
        return 0.0


async def run(
    server: Server, found: dict[str, Graph], seconds: float
) -> tuple[dict[str, Count], list[float]]:
    samples: list[float] = []
    watching = asyncio.create_task(watch(server, samples))
    try:
        return await traffic(server.url, found, seconds), samples
    finally:
        watching.cancel()


def faults(counts: dict[str, Count], samples: list[float]) -> list[str]:
    """Return what is wrong with a run, in sentences."""
    wrong = [f"{name}: {text}" for name, count in counts.items() for text in count.wrong]
    slow = [f"{n}: a request took {c.longest:.0f} s" for n, c in counts.items() if c.longest > LONGEST]
    third = max(1, len(samples) // 3)
    first, last = mean(samples[third : 2 * third] or samples), mean(samples[-third:])
    grown = [f"memory grew from {first:.0f} to {last:.0f} MB"] if last > GROWTH * first + SLACK else []
    return wrong + slow + grown


def loads(server: Server) -> Callable[[str], int]:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()

    def of(name: str) -> int:
        wanted = f'ovserve_wake_seconds_count{{name="{name}"}} '
        return int(next(line.removeprefix(wanted) for line in lines if line.startswith(wanted)))

    return of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zipf", allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--groups", type=int, default=3)
    arguments = parser.parse_args()
    exit_on_sigterm()
    with tempfile.TemporaryDirectory() as directory:
        found = graphs(Path(directory))
        server = serve(Path(directory), found, arguments.groups)
        try:
            counts, samples = asyncio.run(run(server, found, arguments.minutes * 60))
            loaded = loads(server)
            print(f"{len(found)} graphs, {arguments.groups} groups loaded, {arguments.minutes:g} minutes")
            print("graph       requests  loads  longest wait")
            for name, count in counts.items():
                print(f"{name:11} {count.answered:8} {loaded(name):6} {count.longest:9.1f} s")
            print(f"memory: {mean(samples):.0f} MB, {max(samples):.0f} at most")
        finally:
            server.stop()
    wrong = faults(counts, samples)
    print("\n".join(wrong) or "nothing lost, nothing starved, memory flat")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
