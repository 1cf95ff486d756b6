"""`make bench-embeddings`: this server over HTTP against the bare compiled model and libraries, alternating.

    python -m benchmarks.embeddings [--rounds 5] [--setup] [--rows short-8,long-64] [--peers fastembed]

The same MiniLM everywhere. Sides take turns in every row, so all of them have the same machine, and the ratio
to the bare model is taken round by round. CPU is the time of all processes of a side, per text: it says what
the machine's other load hides. "least" is a server made with aiohttp that leaves out all that a server can
leave out (`embedding_least.py`): what it does not reach with short texts, no such server can. `--setup` lays
the peers into .peers/, from the package index; a peer that cannot be installed is named and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import peer_setup
from benchmarks.embedding_servers import Infinity, Least, LlamaCpp, Ovserve, Side, Turn
from tests.conftest import ROOT

PEERS = ROOT / ".peers"
MODEL = ROOT / "models/minilm"
INFINITY = PEERS / "infinity"  # its own environment, because it needs older libraries
LIBRARIES = PEERS / "embeddings"  # fastembed and sentence-transformers, and the model in their forms
GGUF = LIBRARIES / "minilm/minilm-f16.gguf"  # of llama.cpp
PACKAGES = ("fastembed>=0.7,<1", "sentence-transformers>=5,<7", "transformers", "torch", "onnx")
WORDS = "the ship left harbour before sunrise and prices rose by three percent in last quarter she plays cello".split()  # noqa: SIM905
TOKENS = {"short": (16,), "long": (400,), "mixed": (10, 16, 16, 32, 64, 128, 400)}
CLIENTS, MOST_TOKENS = (1, 8, 64), 512
COUNTS = {
    "short": {1: 120, 8: 480, 64: 1024},
    "long": {1: 8, 8: 24, 64: 64},
    "mixed": {1: 24, 8: 64, 64: 128},
}


def texts_of(kind: str, clients: int, seed: int) -> list[str]:
    """Texts of about so many tokens, two of them special; no other round has the same."""
    chance = random.Random(f"{kind}{clients}{seed}")
    count = COUNTS[kind][clients]
    sizes = [chance.choice(TOKENS[kind]) - 2 for _ in range(count)]
    return [" ".join(chance.choice(WORDS) for _ in range(size)) for size in sizes]


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
        self.prepare(texts, clients)
        return self.run(len(texts))

    def prepare(self, texts: list[str], clients: int) -> None:
        self._say(json.dumps({"texts": texts, "clients": clients}))
        self._answer()

    def run(self, count: int) -> Turn:
        """Run the `count` texts that were prepared."""
        self._say("go")
        said = self._answer()
        return Turn(count / said["seconds"], said["cpu"] / count * 1e3, said["note"])

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

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
            cost = median(b.cpu_ms / t.cpu_ms for t, b in zip(turns, bare, strict=True))
            note = f" ({turns[-1].note})" if turns[-1].note else ""
            made.append(
                f"| {self.kind} | {self.clients} | {name}{note} | {mine:.1f} | {ratio:.2f} | {cpu:.2f} | {cost:.2f} |"
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
    peer_setup.main(["llama.cpp"])
    if peer_setup.is_there("llama.cpp"):
        converter = peer_setup.llama_source() / "convert_hf_to_gguf.py"
        command = [python, str(converter), str(safetensors), "--outtype", "f16", "--outfile", str(GGUF)]
        environment = os.environ | {"PYTHONPATH": str(converter.with_name("gguf-py"))}
        subprocess.run(command, check=True, env=environment)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", default="", help="such as short-8,long-64; default: all")
    parser.add_argument("--setup", action="store_true", help="install the peers first")
    parser.add_argument(
        "--peers", default="fastembed,llama.cpp,sentence-transformers,infinity", help="those to compare with"
    )
    asked = parser.parse_args()
    if asked.setup:
        setup()
    rows = [Row(kind, clients) for kind in TOKENS for clients in CLIENTS]
    if asked.rows:
        rows = [row for row in rows if f"{row.kind}-{row.clients}" in asked.rows.split(",")]
    bare = Library("bare", Path(sys.executable), MODEL)
    sides: list[Side] = [bare, Ovserve(), Least(MODEL)]
    for name in filter(None, asked.peers.split(",")):
        try:
            if name == "infinity":
                sides.append(Infinity(INFINITY, LIBRARIES / "minilm"))
                continue
            if name == LlamaCpp.name:
                sides.append(LlamaCpp(peer_setup.llama_server(), GGUF, max(CLIENTS), MOST_TOKENS))
                continue
            sides.append(Library(name, LIBRARIES / "bin/python", LIBRARIES / "minilm"))
        except (OSError, RuntimeError) as error:
            print(f"{name} is left out: {error}; --setup installs it", file=sys.stderr)
    try:
        for side in sides:
            side.turn(texts_of("mixed", 8, -1)[:16], 8)  # compiles what it needs
        print(
            "| texts | clients | side | texts/s | of bare | CPU ms/text | of bare |\n|---|--:|---|--:|--:|--:|--:|"
        )
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
