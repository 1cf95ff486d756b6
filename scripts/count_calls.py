"""Counts the Python calls of requests: `python -m scripts.count_calls [GRAPH] [EMBEDDINGS_GRAPH]` prints them.

It counts functions of ovserve/ and their files, in the server and in the engine process: for the first token of a
streamed chat, for each further one (without functions that timers call as well), and for an embeddings request. A profile function counts them, which Python's
`site` installs in the main thread of both processes. So no clock is involved.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
TOKENS = 32  # further tokens of the long answer, between which a count is shared
WARM_UPS = 3
REPEATS = 5
START_SECONDS = 120
IDLE_SECONDS = 5
SETTLE_SECONDS = 0.2
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
    """Calls by process: of a chat with one token, of each further token, and of an embeddings request."""

    request: dict[str, Calls]
    token: dict[str, Calls]
    embeddings: dict[str, Calls]


Counts = dict[str, Counter[str]]  # by process


def measure(chat: Path, embeddings: Path) -> Report:
    """Serve the graphs and count. Raises RuntimeError if the server does not start."""
    with _serving(chat) as site:
        short, long = site.least(_chat, 1), site.least(_chat, 1 + TOKENS)
        timers = site.timers()
    with _serving(embeddings) as site:
        embedded = site.least(_embed)
    more = {side: long[side] - short[side] for side in long}
    each = {side: Counter({n: c for n, c in more[side].items() if n not in timers[side]}) for side in more}
    return Report(_calls(short), _calls(each, TOKENS), _calls(embedded))


class _Site(NamedTuple):
    """A server that counts its calls."""

    url: str
    folder: Path
    pid: int
    numbers: Iterator[int]

    def least(self, send: Callable[..., None], *arguments: Any) -> Counts:
        """Return the least counts of several equal requests, because timers run during some of them, and a
        loaded machine splits the messages of a step."""
        for _ in range(WARM_UPS):
            send(self.url, *arguments)
        time.sleep(1)  # forms compile and helpers start after the first requests
        each = [self._counted(lambda: send(self.url, *arguments)) for _ in range(REPEATS)]
        return {side: reduce(Counter.__and__, (one[side] for one in each)) for side in each[0]}

    def timers(self) -> Counts:
        """Return the calls of timers, which run during every long answer.

        They run in both pauses. What runs in one of them belongs to a request that is being cleared away."""
        first, second = (self._counted(lambda: time.sleep(IDLE_SECONDS)) for _ in range(2))
        return {side: first[side] & second[side] for side in first}

    def _counted(self, work: Callable[[], None]) -> Counts:
        before = _ask(self.folder, next(self.numbers), self.pid)
        work()
        time.sleep(SETTLE_SECONDS)  # the client has its answer before the server has logged it
        after = _ask(self.folder, next(self.numbers), self.pid)
        return {side: after[side] - before[side] for side in after}


@contextmanager
def _serving(graph: Path) -> Iterator[_Site]:
    with tempfile.TemporaryDirectory(prefix="ovserve-calls-") as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(SITE.format(folder=name, package=f"{ROOT}/ovserve/"))
        process = _serve(graph, folder)
        try:
            yield _Site(_url(process), folder, process.pid, itertools.count())
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


def _calls(counts: Counts, tokens: int = 1) -> dict[str, Calls]:
    """`tokens` share them; a file counts that half of them need."""
    return {
        side: Calls(
            round(each.total() / tokens),
            len({name.partition(":")[0] for name, count in each.items() if count >= tokens / 2}),
            tuple((name, count / tokens) for name, count in each.most_common()),
        )
        for side, each in counts.items()
    }


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
    text = _post(f"{url}/v3/chat/completions", body)
    assert text.rstrip().endswith(b"[DONE]"), text[-300:]


def _embed(url: str) -> None:
    (row,) = json.loads(_post(f"{url}/v3/embeddings", {"model": "model", "input": "Count."}))["data"]
    assert row["embedding"], row


def _post(url: str, body: dict[str, Any]) -> bytes:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
        return bytes(answer.read())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph", nargs="?", type=Path, default=ROOT / "models/smollm2")
    parser.add_argument("embeddings", nargs="?", type=Path, default=ROOT / "models/minilm")
    parser.add_argument("--functions", action="store_true", help="list the calls of each function")
    arguments = parser.parse_args()
    report = measure(arguments.graph, arguments.embeddings)
    for what, sides in (
        ("a streamed chat of one token", report.request),
        ("each further token", report.token),
        ("an embeddings request", report.embeddings),
    ):
        for side, calls in sides.items():
            print(f"{what}, {side}: {calls.calls:,} calls in {calls.files} files")
            for name, count in calls.functions if arguments.functions else ():
                print(f"{count:8.2f}  {name}")


if __name__ == "__main__":
    main()
