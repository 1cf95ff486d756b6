"""`ovserve bench`: load a running server with streamed chats, and print what its clients see.

Works on any server with OpenAI's chat/completions. One thread per client, each with one kept connection; the
numbers are of this machine, client included, so compare only what was measured in the same way.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import pairwise
from urllib.parse import urlsplit

from ovserve.cli.parser import EXIT_FAILED, Commands, table
from ovserve.errors import InvalidArgument

EVENT = b"data: "
DONE = b"[DONE]"
PROMPT = "Tell a story about a lighthouse."


@dataclass
class Answer:
    """Times in seconds."""

    first: float = 0.0
    total: float = 0.0
    gaps: list[float] = field(default_factory=list)  # between two pieces of text
    tokens: int = 0
    error: str = ""


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "bench",
        help="load a running server, and print what its clients see",
        description="Sends streamed chats from several clients at a time. Exit code 1: a request failed. The "
        "key is the variable API_KEY.",
        allow_abbrev=False,
    )
    parser.add_argument("url", help="base address, such as http://127.0.0.1:8000/v3")
    parser.add_argument("--model", required=True, help="the model to ask")
    parser.add_argument("--requests", type=int, default=32, help="how many in all (default: 32)")
    parser.add_argument("--concurrency", type=int, default=4, help="clients at a time (default: 4)")
    parser.add_argument("--max_tokens", type=int, default=64, help="of each answer (default: 64)")
    parser.add_argument("--prompt", default=PROMPT, help=f"what to ask (default: {PROMPT})")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    parts = urlsplit(arguments.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidArgument(f"expected an address such as http://127.0.0.1:8000/v3, got {arguments.url!r}")
    for name in ("requests", "concurrency", "max_tokens"):
        if getattr(arguments, name) < 1:
            raise InvalidArgument(f"--{name}: expected at least 1, got {getattr(arguments, name)}")
    todo = iter(range(arguments.requests))
    answers: list[Answer] = []
    began = time.perf_counter()
    clients = [
        threading.Thread(target=_client, args=(arguments, todo, answers))
        for _ in range(min(arguments.concurrency, arguments.requests))
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    print(report(answers, time.perf_counter() - began))  # noqa: T201
    return EXIT_FAILED if any(a.error for a in answers) else 0


def _client(arguments: argparse.Namespace, todo: Iterator[int], answers: list[Answer]) -> None:
    """Ask until nothing is left to do; `next` on a range and `append` are atomic."""
    parts = urlsplit(arguments.url)
    make = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = make(parts.hostname or "", parts.port, timeout=600)
    for _ in todo:
        try:
            answers.append(_ask(connection, parts.path.rstrip("/"), arguments))
        except (OSError, HTTPException, ValueError) as exc:
            answers.append(Answer(error=f"{type(exc).__name__}: {exc}"))
            connection.close()
    connection.close()


def _ask(connection: HTTPConnection, path: str, arguments: argparse.Namespace) -> Answer:
    body = {
        "model": arguments.model,
        "messages": [{"role": "user", "content": arguments.prompt}],
        "max_tokens": arguments.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    began = time.perf_counter()
    connection.request("POST", f"{path}/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != 200:
        return Answer(error=f"{response.status}: {response.read().decode(errors='replace')}")
    answer, times = Answer(), []
    for line in response:
        if not line.startswith(EVENT) or line.strip().endswith(DONE):
            continue
        event = json.loads(line[len(EVENT) :])
        if "error" in event:
            answer.error = str(event["error"])
        if event.get("usage"):
            answer.tokens = event["usage"]["completion_tokens"]
        if any(choice.get("delta", {}).get("content") for choice in event.get("choices", ())):
            times.append(time.perf_counter())
    answer.total = time.perf_counter() - began
    answer.first = times[0] - began if times else answer.total
    answer.gaps = [after - before for before, after in pairwise(times)]
    return answer


def report(answers: list[Answer], seconds: float) -> str:
    """Percentiles are of the answers that did not fail."""
    good = [a for a in answers if not a.error]
    tokens = sum(a.tokens for a in good)
    lines = [
        f"{len(good)} answers, {len(answers) - len(good)} failed, in {seconds:.2f} s",
        f"{len(good) / seconds:.2f} answers/s, {tokens / seconds:.1f} tokens/s",
    ]
    lines += sorted({f"failed: {a.error}" for a in answers if a.error})
    if good:
        rows = [
            ["first token", *_percentiles([a.first for a in good])],
            ["between tokens", *_percentiles([gap for a in good for gap in a.gaps])],
            ["whole answer", *_percentiles([a.total for a in good])],
        ]
        lines += ["", table(["milliseconds", "p50", "p90", "p99", "max"], rows)]
    return "\n".join(lines)


def _percentiles(seconds: list[float]) -> list[str]:
    if not seconds:
        return ["-"] * 4
    ordered = sorted(seconds)
    ranks = [ordered[min(len(ordered) - 1, int(len(ordered) * part))] for part in (0.5, 0.9, 0.99)]
    return [f"{one * 1000:.1f}" for one in (*ranks, ordered[-1])]
