"""Counts the Python calls of a streamed chat: `python -m scripts.count_calls [GRAPH]` prints them.

It counts functions of ovserve/ and their files, for the first token of a request and for each further one, in the
server and in the engine process. A profile function counts them, which Python's `site` installs
in the main thread of both processes. So no clock is involved.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from functools import reduce
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TOKENS = 32  # further tokens of the long answer, between which a count is shared
WARM_UPS = 3
REPEATS = 5
START_SECONDS = 120
IDLE_SECONDS = 5
# Runs in each process before its first module. A thread writes the counts when `ask` has a new number.
SITE = """
import collections, json, os, sys, threading, time
folder, package = {folder!r}, {package!r}
counts = collections.Counter()
def count(frame, event, arg):
    if event == "call":
        code = frame.f_code
        if code.co_filename.startswith(package):
            counts[code.co_filename[len(package):] + ":" + code.co_qualname] += 1
def write():
    answered = ""
    while True:
        time.sleep(0.01)
        try:
            asked = open(folder + "/ask").read()
        except OSError:
            continue
        if asked != answered:
            answered = asked
            name = folder + "/%s.%d" % (asked, os.getpid())
            with open(name + ".new", "w") as file:
                json.dump(dict(counts), file)
            os.rename(name + ".new", name + ".json")
threading.Thread(target=write, daemon=True).start()
sys.setprofile(count)
"""


class Calls(NamedTuple):
    calls: int
    files: int
    functions: tuple[tuple[str, float], ...] = ()  # "file:name" and its calls, most first


class Report(NamedTuple):
    """Calls of a request with one token, and of each further token."""

    request: dict[str, Calls]
    token: dict[str, Calls]


def measure(graph: Path) -> Report:
    """Serve `graph` and count. Raises RuntimeError if the server does not start."""
    with tempfile.TemporaryDirectory(prefix="ovserve-calls-") as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(SITE.format(folder=name, package=f"{ROOT}/ovserve/"))
        process = _serve(graph, folder)
        try:
            return _report(_url(process), folder, process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()


def _serve(graph: Path, folder: Path) -> subprocess.Popen[str]:
    flags = ["--rest_port", "0", "--model_name", "model", "--model_path", str(graph)]
    flags += ["--response_store_path", str(folder / "responses.db")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}
    command = [sys.executable, "-m", "ovserve", "serve", *flags]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    log = []
    for line in process.stdout:
        log.append(line)
        if found := re.search(r"ready at (http://[^/\s]+)/v3", line):
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return found[1]
    raise RuntimeError("the server did not start:\n" + "".join(log))


def _report(url: str, folder: Path, server: int) -> Report:
    numbers = iter(range(1 << 30))

    def counted(tokens: int) -> dict[str, Counter[str]]:
        before = _ask(folder, next(numbers), server)
        _chat(url, tokens)
        after = _ask(folder, next(numbers), server)
        return {
            side: Counter({n: c for n, c in (after[side] - before[side]).items() if n not in timers[side]})
            for side in after
        }

    for _ in range(WARM_UPS):
        _chat(url, 1 + TOKENS)
    time.sleep(1)  # forms compile and helpers start after the first requests
    idle = [_ask(folder, next(numbers), server)]
    for _ in range(2):
        time.sleep(IDLE_SECONDS)
        idle.append(_ask(folder, next(numbers), server))
    # Timers run in both pauses. What runs in one of them belongs to a request that is being cleared away.
    first, second = ({s: (b[s] - a[s]).keys() for s in b} for a, b in itertools.pairwise(idle))
    timers = {side: first[side] & second[side] for side in first}
    short, long = (_least([counted(tokens) for _ in range(REPEATS)]) for tokens in (1, 1 + TOKENS))
    request = {side: Calls(short[side].total(), _files(short[side]), _rows(short[side])) for side in short}
    more = {side: long[side] - short[side] for side in long}
    each = {
        side: Calls(
            round(more[side].total() / TOKENS),
            _files(Counter({n: c for n, c in more[side].items() if c >= TOKENS // 2})),
            _rows(more[side], TOKENS),
        )
        for side in more
    }
    return Report(request, each)


def _least(counted: list[dict[str, Counter[str]]]) -> dict[str, Counter[str]]:
    """Return the least of each count, because a loaded machine splits the messages of a step."""
    return {side: reduce(Counter.__and__, (each[side] for each in counted)) for side in counted[0]}


def _rows(counts: Counter[str], tokens: int = 1) -> tuple[tuple[str, float], ...]:
    return tuple((name, count / tokens) for name, count in counts.most_common())


def _files(counts: Counter[str]) -> int:
    return len({name.partition(":")[0] for name in counts})


def _ask(folder: Path, number: int, server: int) -> dict[str, Counter[str]]:
    """Return the counts so far of the server and of the engine process."""
    (folder / "ask.new").write_text(str(number))
    (folder / "ask.new").rename(folder / "ask")
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    engines = [
        pid for pid in children if b"ovserve.engine.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    found: dict[str, Counter[str]] = {}
    deadline = time.monotonic() + START_SECONDS
    for pid in [str(server), *engines]:
        file = folder / f"{number}.{pid}.json"
        while not file.exists():
            if time.monotonic() > deadline:
                raise RuntimeError(f"process {pid} wrote no counts")
            time.sleep(0.01)
        side = "server" if pid == str(server) else "engine"
        found[side] = found.get(side, Counter()) + Counter(json.loads(file.read_text()))
    return found


def _chat(url: str, tokens: int) -> None:
    body = {
        "model": "model",
        "messages": [{"role": "user", "content": "Count."}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }
    request = urllib.request.Request(
        f"{url}/v3/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
        text = answer.read()
    assert text.rstrip().endswith(b"[DONE]"), text[-300:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph", nargs="?", type=Path, default=ROOT / "models/smollm2")
    parser.add_argument("--functions", action="store_true", help="list the calls of each function")
    arguments = parser.parse_args()
    report = measure(arguments.graph)
    for what, sides in (
        ("a streamed chat of one token", report.request),
        ("each further token", report.token),
    ):
        for side, calls in sides.items():
            print(f"{what}, {side}: {calls.calls:,} calls in {calls.files} files")
            for name, count in calls.functions if arguments.functions else ():
                print(f"{count:8.2f}  {name}")


if __name__ == "__main__":
    main()
