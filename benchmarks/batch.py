"""Measures what a batch costs live requests, and what it gets: alone, and next to them.

    python -m benchmarks.batch [--rounds 6] [--seconds 20] [--every 1.5]

Rounds alternate: live requests alone, then the same ones while a batch runs. A live request comes every so many
seconds, at the same times in each round, and reads its answer as a stream. The batch's pace alone is compared
with that of its lines as live requests. Its pace next to live requests is compared with its pace alone, in the
time without a live request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
import openai

from benchmarks.processes import GRAPH, exit_on_sigterm, stop_server
from ovserve.services.responses.batch_runner import MAX_RUNNING_LINES
from tests.conftest import start_server

LIVE, LINES = "ovserve_generated_tokens_total", "ovserve_batch_generated_tokens_total"
LIVE_TOKENS, LINE_TOKENS = 32, 48
TOPICS = ("rivers", "clocks", "bread", "kites", "glass", "tides", "violins", "maps", "bees", "snow")
MANNERS = ("history", "uses", "makers", "colours", "sounds", "dangers", "names", "prices", "repair", "songs")
SYSTEM = "You write short and plain texts for a reader who knows nothing of the matter. " * 4


@dataclass
class Times:
    """Seconds of live requests: to the first token, between tokens, and in which one ran."""

    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    spans: list[tuple[float, float]] = field(default_factory=list)

    def busy(self) -> float:
        """Return the seconds in which at least one ran."""
        total = end = 0.0
        for start, stop in sorted(self.spans):
            total += max(0.0, stop - max(start, end))
            end = max(end, stop)
        return total


def body(number: int, tokens: int, **more: Any) -> dict[str, Any]:
    topic, manner = TOPICS[number % 10], MANNERS[number // 10 % 10]
    question = f"{number}: write about the {manner} of {topic}."
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    return {"model": "smollm2", "messages": messages, "max_tokens": tokens, "ignore_eos": True, **more}


async def live(client: httpx.AsyncClient, number: int, times: Times) -> None:
    began = time.monotonic()
    last = 0.0
    # No two requests have the same first words: the prefix cache does not help.
    asked = body(number, LIVE_TOKENS, stream=True)
    asked["messages"][0]["content"] = f"Number {number}. " + SYSTEM
    async with client.stream("POST", "/v1/chat/completions", json=asked) as answer:
        async for line in answer.aiter_lines():
            if not line.startswith("data: {") or not json.loads(line[6:])["choices"][0]["delta"].get(
                "content"
            ):
                continue
            now = time.monotonic()
            if last:
                times.gaps.append(now - last)
            else:
                times.first.append(now - began)
            last = now
    times.spans.append((began, time.monotonic()))


async def live_round(url: str, seconds: float, every: float, seed: int, times: Times, first: int = 0) -> None:
    draw = random.Random(seed)
    async with httpx.AsyncClient(base_url=url, timeout=600) as client, asyncio.TaskGroup() as group:
        start = at = time.monotonic()
        while at < start + seconds:
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            group.create_task(live(client, 100_000 + first + draw.randrange(100_000), times))
            at += draw.uniform(0.5, 1.5) * every


async def lines_as_requests(url: str, seconds: float, numbers: Iterable[int]) -> float:
    """Return tokens per second of the lines sent by as many clients as a batch has lines that run."""
    todo = iter(numbers)

    async def send(client: httpx.AsyncClient) -> None:
        while True:
            await client.post("/v1/chat/completions", json=body(next(todo), LINE_TOKENS))

    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        clients = [asyncio.create_task(send(client)) for _ in range(MAX_RUNNING_LINES)]
        before, began = await counted(url, LIVE), time.monotonic()
        await asyncio.sleep(seconds)
        pace = (await counted(url, LIVE) - before) / (time.monotonic() - began)
        for one in clients:
            one.cancel()
        await asyncio.wait(clients)
    return pace


async def counted(url: str, name: str) -> float:
    async with httpx.AsyncClient(base_url=url) as client:
        lines = (await client.get("/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


class Batch:
    """A batch that is long enough."""

    def __init__(self, client: openai.AsyncOpenAI, url: str, numbers: Iterable[int]) -> None:
        self._client, self._url, self._numbers = client, url, numbers
        self._id = ""

    async def start(self) -> None:
        lines = [
            {
                "custom_id": str(n),
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": body(n, LINE_TOKENS),
            }
            for n in self._numbers
        ]
        data = "".join(json.dumps(line) + "\n" for line in lines).encode()
        file = await self._client.files.create(file=("lines.jsonl", data), purpose="batch")
        made = await self._client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        self._id = made.id
        before = await self.tokens()
        while await self.tokens() == before:  # noqa: ASYNC110  another process
            await asyncio.sleep(0.2)

    async def tokens(self) -> float:
        return await counted(self._url, LINES)

    async def cancel(self) -> None:
        while (await self._client.batches.cancel(self._id)).status != "cancelled":  # noqa: ASYNC110
            await asyncio.sleep(0.2)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def measure(url: str, rounds: int, seconds: float, every: float) -> None:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    lines = 4000
    pace_live, pace_alone, pace_beside, left = [], [], [], []
    without, beside = Times(), Times()
    await live_round(url, 5, every, 0, Times())
    for number in range(rounds):
        first = (2 * number + 1) * lines
        pace_live.append(await lines_as_requests(url, seconds, range(first, first + lines)))
        await live_round(url, seconds, every, number, without)
        batch = Batch(client, url, range(first + lines, first + 2 * lines))
        await asyncio.sleep(6)  # until steps of batches may be long
        await batch.start()
        before, began = await batch.tokens(), time.monotonic()
        await asyncio.sleep(seconds)
        pace_alone.append((await batch.tokens() - before) / (time.monotonic() - began))
        this = Times()
        before, began = await batch.tokens(), time.monotonic()
        await live_round(url, seconds, every, number, this, 100_000)
        took = time.monotonic() - began
        pace_beside.append((await batch.tokens() - before) / took)
        left.append(1 - this.busy() / took)
        for name in ("first", "gaps", "spans"):
            getattr(beside, name).extend(getattr(this, name))
        await batch.cancel()
    print(f"{len(without.first)} and {len(beside.first)} live requests, one every {every:g} s\n")
    print("| milliseconds | without a batch | with one | ratio |")
    print("|---|---|---|---|")
    for name, times in (("first token", "first"), ("gap", "gaps")):
        for share in (0.5, 0.95, 0.99):
            one, other = percentile(getattr(without, times), share), percentile(getattr(beside, times), share)
            print(f"| {name} p{share * 100:.0f} | {one * 1e3:.1f} | {other * 1e3:.1f} | {other / one:.2f} |")
    alone, requests, next_to = fmean(pace_alone), fmean(pace_live), fmean(pace_beside)
    print(f"\nbatch alone: {alone:.0f} tokens/s, {alone / requests:.2f} of {requests:.0f} as live requests")
    print(
        f"batch next to live requests: {next_to:.0f} tokens/s, {next_to / (alone * fmean(left)):.2f} of its pace "
        f"alone in the {fmean(left):.0%} of the time without one"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--every", type=float, default=1.5, help="seconds between two live requests")
    arguments = parser.parse_args()
    exit_on_sigterm()
    with tempfile.TemporaryDirectory() as place:
        server = start_server(GRAPH, "--response_store_path", str(Path(place) / "responses.db"))
        try:
            asyncio.run(measure(server.url, arguments.rounds, arguments.seconds, arguments.every))
        finally:
            stop_server(server)


if __name__ == "__main__":
    main()
