"""Measures what `prefix_cache_path` gains: the first token of a long prompt after the server was killed.

    python -m benchmarks.prefix_store [--model FILE_OR_DIRECTORY] [--tokens 8000] [--size 4] [--answer 256]

The same prompt, random token ids, is sent to a new server, again to that server, and after `kill -9` to another
one. Then the gaps of an answer show what writing costs the steps; `--answer 0` leaves that out.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import tempfile
import time
from pathlib import Path
from statistics import median

import httpx

from benchmarks.behind import events
from benchmarks.processes import exit_on_sigterm, stop_server
from tests.conftest import MODEL, Server, start_process

FIRST_ID, LAST_ID = 1000, 40_000


async def first_token(server: Server, ids: list[int]) -> float:
    async with httpx.AsyncClient(base_url=server.url, timeout=3600) as http:
        began = time.monotonic()
        async for _ in events(http, {"prompt": ids, "max_tokens": 1, "ignore_eos": True, "stream": True}):
            return time.monotonic() - began
    raise RuntimeError("no token came")


async def gap(server: Server, tokens: int) -> float:
    """Return the median seconds between the tokens of an answer."""
    times: list[float] = []
    async with httpx.AsyncClient(base_url=server.url, timeout=3600) as http:
        body = {
            "prompt": random.sample(range(FIRST_ID, LAST_ID), 64),
            "max_tokens": tokens,
            "ignore_eos": True,
        }
        async for _ in events(http, {**body, "stream": True, "num_assistant_tokens": 0}):
            times.append(time.monotonic())
    return median(later - earlier for earlier, later in itertools.pairwise(times))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--size", type=int, default=4, help="GB of the directory")
    parser.add_argument("--answer", type=int, default=256, help="tokens of an answer; 0: none")
    arguments = parser.parse_args()
    exit_on_sigterm()
    ids = [random.randrange(FIRST_ID, LAST_ID) for _ in range(arguments.tokens)]
    with tempfile.TemporaryDirectory() as place:
        common = ["--model_name", "smollm2", "--model_repository_path", f"{place}/models"]

        def start(kept: str) -> Server:
            store = (
                () if not kept else ("--prefix_cache_path", kept, "--prefix_cache_size", str(arguments.size))
            )
            return start_process(*common, "--source_model", str(arguments.model), *store, timeout=1800)

        kept = f"{place}/kept"
        server = start(kept)
        rows = [("computed", asyncio.run(first_token(server, ids)))]
        rows.append(("again, in memory", asyncio.run(first_token(server, ids))))
        size = 0
        while size != (size := sum(file.stat().st_size for file in Path(kept).iterdir())):
            time.sleep(1)
        server.process.kill()
        stop_server(server)
        server = start(kept)
        rows.append(("after kill -9, from the file", asyncio.run(first_token(server, ids))))
        if arguments.answer:
            rows.append(("gap of an answer, written", asyncio.run(gap(server, arguments.answer))))
            stop_server(server)
            server = start("")
            rows.append(("gap of an answer, without the option", asyncio.run(gap(server, arguments.answer))))
        stop_server(server)
    print(f"{arguments.tokens} tokens, {size / 1e6:.0f} MB in the file\n")
    print("| | seconds |\n|---|--:|")
    for name, seconds in rows:
        print(f"| {name} | {seconds:.3f} |")


if __name__ == "__main__":
    main()
