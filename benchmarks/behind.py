"""Measures how long a short request waits behind a long prompt, through the HTTP server with the default graph.

    python -m benchmarks.behind [--tokens 7000] [--rounds 3] [--prompts 1]

A neighbour's stream gets a token from every step, so its tokens count the steps. In each round a short request is
sent during that stream alone, and again while `--prompts` long prompts of one `completions` request are read. Reported
are the time and the steps to its first token, and the longest gap of the stream. Prompts are random token ids, so
no prefix is found in the cache.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import httpx

from tests.conftest import ROOT, start_server

SHORT_TOKENS = 40
BEGUN_STEPS = 2  # of the neighbour's stream, after which the long prompt is being read


@dataclass
class Neighbour:
    """A stream that runs all the time."""

    tokens: int = 0
    last: float = 0.0
    gap: float = 0.0
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def listen(self, http: httpx.AsyncClient) -> None:
        while True:  # the context has an end
            body = {"prompt": prompt(20), "max_tokens": 6000, "ignore_eos": True, "stream": True}
            async for _ in events(http, body):
                now = time.monotonic()
                self.gap = max(self.gap, now - (self.last or now))
                self.last, self.tokens = now, self.tokens + 1
                async with self.moved:
                    self.moved.notify_all()

    async def after(self, steps: int) -> None:
        until = self.tokens + steps
        async with self.moved:
            await self.moved.wait_for(lambda: self.tokens >= until)


@dataclass
class Measured:
    milliseconds: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    def line(self, name: str) -> str:
        return (
            f"| {name} | {median(self.milliseconds):.0f} ms | {median(self.steps):.0f}"
            f" ({min(self.steps)}..{max(self.steps)}) | {max(self.gaps) * 1000:.0f} ms |"
        )


def prompt(tokens: int) -> list[int]:
    return random.choices(range(1000, 40_000), k=tokens)


async def events(http: httpx.AsyncClient, body: dict[str, Any]) -> Any:
    async with http.stream("POST", "/v3/completions", json={"model": "smollm2", **body}) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                yield line


async def first_token(http: httpx.AsyncClient, neighbour: Neighbour, found: Measured) -> None:
    neighbour.gap, began, tokens = 0.0, time.monotonic(), neighbour.tokens
    async for _ in events(http, {"prompt": prompt(SHORT_TOKENS), "max_tokens": 2, "stream": True}):
        found.milliseconds.append((time.monotonic() - began) * 1000)
        found.steps.append(neighbour.tokens - tokens)
        break
    await neighbour.after(1)
    found.gaps.append(neighbour.gap)


async def measure(url: str, tokens: int, rounds: int, prompts: int) -> tuple[Measured, Measured, Measured]:
    alone, behind, reading = Measured(), Measured(), Measured()
    neighbour = Neighbour()
    async with httpx.AsyncClient(base_url=url, timeout=900) as http:
        listening = asyncio.create_task(neighbour.listen(http))
        try:
            for _ in range(rounds):
                await neighbour.after(BEGUN_STEPS)
                await first_token(http, neighbour, alone)
                body = {
                    "model": "smollm2",
                    "prompt": [prompt(tokens) for _ in range(prompts)],
                    "max_tokens": 1,
                }
                neighbour.gap, began, steps = 0.0, time.monotonic(), neighbour.tokens
                long = asyncio.create_task(http.post("/v3/completions", json=body))
                await neighbour.after(BEGUN_STEPS)
                worst = neighbour.gap
                await first_token(http, neighbour, behind)
                if long.done():
                    raise RuntimeError(
                        "the long prompt was read before the short request; give more --tokens"
                    )
                (await long).raise_for_status()
                reading.milliseconds.append((time.monotonic() - began) * 1000)
                reading.steps.append(neighbour.tokens - steps)
                reading.gaps.append(max(worst, neighbour.gap))
        finally:
            listening.cancel()
            await asyncio.wait({listening})
    return alone, behind, reading


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=7000, help="of a long prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=1, help="long ones, in one request")
    args = parser.parse_args()
    server = start_server(ROOT / "graphs/smollm2", timeout=180)
    try:
        began = time.monotonic()
        alone, behind, reading = asyncio.run(measure(server.url, args.tokens, args.rounds, args.prompts))
        print("| a short request | first token | steps | longest gap of the stream |\n|---|--:|--:|--:|")
        print(alone.line("during a stream"))
        print(behind.line(f"behind {args.prompts} of {args.tokens} tokens"))
        print(reading.line("those, to their end"))
        print(f"{args.rounds} rounds in {time.monotonic() - began:.0f} s; load {os.getloadavg()[0]:.1f}")
    finally:
        server.stop()


if __name__ == "__main__":
    main()
