"""Measures long prompts and long conversations through the HTTP server, on the default model. Four minutes.

    python -m benchmarks.long_prompts [--model DIRECTORY] [--batched 256,512,1024,2048] [--tokens 6000]
                                      [--streams 4] [--turns 50] [--flags "--engine paged"]

- For each `max_num_batched_tokens`, a prompt is read next to running streams: the time to its first token, and
  the gaps between the tokens of the streams meanwhile and alone. Then the same prompt with a few more tokens,
  as in the second turn of a conversation, and the memory of the server and its engine.
- A conversation: each turn sends all that was said before, and gets a short answer. Reported is the time to
  the first token by turn, with the prefix cache and without.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx

from benchmarks.behind import events, prompt
from benchmarks.processes import memory, stop_server
from tests.conftest import MODEL, Server, start_server

WARM = 24  # tokens of each stream before the long prompt is sent, in which the gaps alone are measured
TURN_WORDS, TURN_TOKENS = 16, 16  # of a question, of an answer
SHOWN = 10  # turns of a row


@contextlib.contextmanager
def served(model: Path, *flags: str) -> Iterator[Server]:
    server = start_server(model, *flags, timeout=180)
    try:
        yield server
    finally:
        stop_server(server)


class Stream:
    """A running answer, and the gaps between its tokens."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.warm = asyncio.Event()

    async def listen(self, http: httpx.AsyncClient) -> None:
        body = {"prompt": prompt(64), "max_tokens": 7000, "ignore_eos": True, "stream": True}
        async for _ in events(http, body):
            self.times.append(time.monotonic())
            if len(self.times) == WARM:
                self.warm.set()

    def gaps(self, begin: float, end: float) -> list[float]:
        return [b - a for a, b in itertools.pairwise(self.times) if b > begin and a < end]


class Beside(NamedTuple):
    """A prompt next to streams: seconds to its first token, to that of its second turn, gaps of the streams."""

    first: float
    again: float
    alone: list[float]
    meanwhile: list[float]


async def first_token(http: httpx.AsyncClient, ids: list[int]) -> float:
    began = time.monotonic()
    async for _ in events(http, {"prompt": ids, "max_tokens": 1, "stream": True}):
        break
    return time.monotonic() - began


async def beside(url: str, tokens: int, streams: int) -> Beside:
    ids = prompt(tokens)
    async with httpx.AsyncClient(base_url=url, timeout=3600) as http:
        running = [Stream() for _ in range(streams)]
        tasks = [asyncio.create_task(stream.listen(http)) for stream in running]
        try:
            for stream in running:
                await stream.warm.wait()
            alone = max(stream.times[0] for stream in running)
            began = time.monotonic()
            first = await first_token(http, ids)
            ended = time.monotonic()
            await asyncio.sleep(0.5)  # the gap in which it ended is closed
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        again = await first_token(http, ids + prompt(TURN_WORDS))
    return Beside(
        first,
        again,
        [gap for stream in running for gap in stream.gaps(alone, began)],
        [gap for stream in running for gap in stream.gaps(began, ended)],
    )


def part(values: list[float], share: float) -> float:
    """Milliseconds."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] * 1e3


async def conversation(url: str, turns: int) -> list[float]:
    """Return the milliseconds to the first token of each turn."""
    words = random.Random(7)
    vocabulary = ["river", "stone", "lamp", "garden", "winter", "letter", "music", "bread", "harbour"]
    said: list[dict[str, Any]] = []
    found = []
    async with httpx.AsyncClient(base_url=url, timeout=300) as http:
        for _ in range(turns):
            said.append({"role": "user", "content": " ".join(words.choices(vocabulary, k=TURN_WORDS))})
            body = {"model": "smollm2", "messages": said, "stream": True, "max_tokens": TURN_TOKENS}
            began, first, text = time.monotonic(), 0.0, ""
            sent = {**body, "temperature": 0, "ignore_eos": True}
            async with http.stream("POST", "/v3/chat/completions", json=sent) as answer:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        delta = httpx.Response(200, text=line[6:]).json()["choices"][0]["delta"]
                        if delta.get("content"):
                            first = first or time.monotonic() - began
                            text += delta["content"]
            said.append({"role": "assistant", "content": text})
            found.append(first * 1e3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_prompts")
    parser.add_argument("--model", type=Path, default=MODEL.parent)
    parser.add_argument("--batched", default="256,512,1024,2048")
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--flags", default="", help="more options of the server, which make it a graph")
    chosen = parser.parse_args()
    flags = shlex.split(chosen.flags)
    print(
        "| tokens a step | first token of the prompt, s | second turn, s | gap p50 alone, ms | meanwhile: p50 "
        "| p99 | longest | resident, GB |"
    )
    print("|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for batched in filter(None, chosen.batched.split(",")):
        with served(chosen.model, *flags, "--max_num_batched_tokens", batched) as server:
            made = asyncio.run(beside(server.url, chosen.tokens, chosen.streams))
            pids = server.process.pid, *server.children("ovserve.engine.worker.main")
            resident = sum(memory(pid)[0] for pid in pids) / 1e3
        gaps = made.meanwhile
        cells = [part(made.alone, 0.5), part(gaps, 0.5), part(gaps, 0.99), max(gaps) * 1e3]
        row = [f"{made.first:.1f}", f"{made.again:.2f}", *(f"{c:.0f}" for c in cells), f"{resident:.2f}"]
        print(f"| {batched} | " + " | ".join(row) + " |", flush=True)
    if chosen.turns:
        print(
            "\n| turns | " + " | ".join(f"{n + 1}..{n + SHOWN}" for n in range(0, chosen.turns, SHOWN)) + " |"
        )
        print("|---|" + "--:|" * -(-chosen.turns // SHOWN), flush=True)
        for caching in ("true", "false"):
            with served(chosen.model, *flags, "--enable_prefix_caching", caching) as server:
                found = asyncio.run(conversation(server.url, chosen.turns))
            rows = [median(found[n : n + SHOWN]) for n in range(0, chosen.turns, SHOWN)]
            name = "with prefix cache" if caching == "true" else "without"
            print(f"| {name}, ms | " + " | ".join(f"{row:.0f}" for row in rows) + " |", flush=True)


if __name__ == "__main__":
    main()
