"""`make bench-embeddings`: this server over HTTP against the bare compiled model and libraries, alternating.

    python -m benchmarks.embeddings [--rounds 5] [--setup] [--rows short-8,long-64] [--peers fastembed]

The same MiniLM everywhere. Sides take turns in every row, so all of them have the same machine, and the ratio
to the bare model is taken round by round. CPU is the time of all processes of a side, per text: it says what
the machine's other load hides. `--setup` lays the peers into .peers/, from the package index; a peer that
cannot be installed is named and left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import time
import venv
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.processes import cost
from tests.conftest import ROOT, Server, start_process

PEERS = ROOT / ".peers"
MODEL = ROOT / "models/minilm"
INFINITY = PEERS / "infinity"  # its own environment, because it needs older libraries
START_SECONDS = 180
LIBRARIES = PEERS / "embeddings"  # fastembed and sentence-transformers, and the model in their forms
PACKAGES = ("fastembed>=0.7,<1", "sentence-transformers>=5,<7", "transformers", "torch", "onnx")
WORDS = "the ship left harbour before sunrise and prices rose by three percent in last quarter she plays cello".split()  # noqa: SIM905
TOKENS = {"short": (16,), "long": (400,), "mixed": (10, 16, 16, 32, 64, 128, 400)}
COUNTS = {"short": {1: 60, 8: 240, 64: 512}, "long": {1: 8, 8: 24, 64: 64}, "mixed": {1: 24, 8: 64, 64: 128}}


def texts_of(kind: str, clients: int, seed: int) -> list[str]:
    """Texts of about so many tokens, two of them special; no other round has the same."""
    chance = random.Random(f"{kind}{clients}{seed}")
    count = COUNTS[kind][clients]
    sizes = [chance.choice(TOKENS[kind]) - 2 for _ in range(count)]
    return [" ".join(chance.choice(WORDS) for _ in range(size)) for size in sizes]


@dataclass
class Turn:
    per_second: float
    cpu_ms: float  # per text
    note: str = ""


class Library:
    """A side that is a library in another process."""

    def __init__(self, name: str, python: Path, directory: Path) -> None:
        self.name = name
        script = ROOT / "benchmarks/embedding_sides.py"
        environment = os.environ | {"PYTHONPATH": str(ROOT)} if name == "bare" else dict(os.environ)
        self._process = subprocess.Popen(
            [str(python), str(script), name, str(directory)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
        )  # fmt: skip
        self._answer()

    def turn(self, texts: list[str], clients: int) -> Turn:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"texts": texts, "clients": clients}) + "\n")
        self._process.stdin.flush()
        said = self._answer()
        return Turn(len(texts) / said["seconds"], said["cpu"] / len(texts) * 1e3, said["note"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class Http:
    """This server, asked by as many connections as there are clients, one text each."""

    name = "ovserve"

    def __init__(self) -> None:
        self._server: Server = start_process(
            "--model_name", "minilm", "--model_path", str(ROOT / "graphs/embeddings")
        )
        self._pids = [self._server.process.pid, *self._server.children("ovserve.engine.worker.main")]
        self._port, self._path = self._server.port, "/v3/embeddings"

    def turn(self, texts: list[str], clients: int) -> Turn:
        bodies = [
            json.dumps({"model": "minilm", "input": t, "encoding_format": "base64"}).encode() for t in texts
        ]
        before, began = self._cpu(), time.perf_counter()
        asyncio.run(self._ask(bodies, clients))
        seconds = time.perf_counter() - began
        return Turn(len(texts) / seconds, (self._cpu() - before) / len(texts) * 1e3)

    def _cpu(self) -> float:
        return sum(cost(pid).cpu for pid in self._pids)

    async def _ask(self, bodies: list[bytes], clients: int) -> None:
        await asyncio.gather(*(self._client(bodies) for _ in range(clients)))

    async def _client(self, bodies: list[bytes]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        while bodies:
            body = bodies.pop()
            head = (
                b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            )
            writer.write(head % (self._path.encode(), len(body)) + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(answer.partition(b"content-length: ")[2].split()[0]))
            if b" 200 " not in answer[:16]:
                raise RuntimeError(answer.decode())
        writer.close()
        await writer.wait_closed()

    def stop(self) -> None:
        self._server.stop()


class Infinity(Http):
    """infinity's server with torch, asked in the same way."""

    name = "infinity"

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port, self._path = free.getsockname()[1], "/embeddings"
        command = [str(INFINITY / "bin/infinity_emb"), "v2", "--model-id", str(LIBRARIES / "minilm")]
        command += ["--served-model-name", "minilm", "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--engine", "torch", "--device", "cpu", "--no-bettertransformer", "--no-model-warmup"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, env=os.environ | {"HF_HUB_OFFLINE": "1"}, **quiet)  # type: ignore[call-overload]
        self._pids = [self._process.pid]
        for _ in range(START_SECONDS):
            if self._process.poll() is not None:
                raise RuntimeError(f"it ended with {self._process.returncode}")
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
                return
            time.sleep(1)
        self.stop()
        raise RuntimeError(f"it was not ready within {START_SECONDS} s")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass
class Row:
    kind: str
    clients: int
    turns: dict[str, list[Turn]] = field(default_factory=dict)

    def lines(self) -> list[str]:
        bare = self.turns["bare"]
        made = []
        for name, turns in self.turns.items():
            ratio = median(t.per_second / b.per_second for t, b in zip(turns, bare, strict=True))
            mine, cpu = median(t.per_second for t in turns), median(t.cpu_ms for t in turns)
            note = f" ({turns[-1].note})" if turns[-1].note else ""
            made.append(
                f"| {self.kind} | {self.clients} | {name}{note} | {mine:.1f} | {ratio:.2f} | {cpu:.2f} |"
            )
        return made


def setup() -> None:
    """Lay the peers into .peers/."""
    if not INFINITY.exists():
        venv.create(INFINITY, with_pip=True)
        install = [
            str(INFINITY / "bin/python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "infinity-emb[server,torch]",
        ]
        subprocess.run(install, check=False)  # without it the others are still compared
    if not LIBRARIES.exists():
        venv.create(LIBRARIES, with_pip=True)
    python = str(LIBRARIES / "bin/python")
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True
    )
    safetensors = LIBRARIES / "minilm"
    subprocess.run(
        [sys.executable, "-m", "benchmarks.embedding_models", "fetch", str(safetensors)], cwd=ROOT, check=True
    )
    subprocess.run(
        [python, "-P", str(ROOT / "benchmarks/embedding_models.py"), "onnx", str(safetensors)], check=True
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", default="", help="such as short-8,long-64; default: all")
    parser.add_argument("--setup", action="store_true", help="install the peers first")
    parser.add_argument(
        "--peers", default="fastembed,sentence-transformers,infinity", help="those to compare with"
    )
    asked = parser.parse_args()
    if asked.setup:
        setup()
    rows = [Row(kind, clients) for kind in TOKENS for clients in (1, 8, 64)]
    if asked.rows:
        rows = [row for row in rows if f"{row.kind}-{row.clients}" in asked.rows.split(",")]
    sides: list[Library | Http] = [Library("bare", Path(sys.executable), MODEL), Http()]
    for name in filter(None, asked.peers.split(",")):
        try:
            if name == "infinity":
                sides.append(Infinity())
                continue
            sides.append(Library(name, LIBRARIES / "bin/python", LIBRARIES / "minilm"))
        except (OSError, RuntimeError) as error:
            print(f"{name} is left out: {error}; --setup installs it", file=sys.stderr)
    try:
        for side in sides:
            side.turn(texts_of("mixed", 8, -1)[:16], 8)  # compiles what it needs
        print("| texts | clients | side | texts/s | of bare | CPU ms/text |\n|---|--:|---|--:|--:|--:|")
        for row in rows:
            for number in range(asked.rounds):
                texts = texts_of(row.kind, row.clients, number)
                for side in sides if number % 2 == 0 else sides[::-1]:
                    row.turns.setdefault(side.name, []).append(side.turn(texts, row.clients))
            print("\n".join(row.lines()), flush=True)
    finally:
        for side in sides:
            side.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
