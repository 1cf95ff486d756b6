"""`make bench-convert`: a .gguf file against OpenVINO's form of it, for docs/pull.md: size, start, tokens per second.

Starts alternate between the two, so that a noisy minute hurts both alike. Needs a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median

from ovserve.cli.parser import table
from ovserve.engine.client.text import TextClient
from ovserve.engine.protocol.specs import text_spec
from ovserve.llm.request import GenerateRequest, Sampling
from ovserve.pull.convert import convert
from tests.conftest import MODEL

PROMPT = "Write a long story about a lighthouse and the people who keep it."
STREAMS = (1, 8)


async def _answer(engine: TextClient, number: int, tokens: int) -> None:
    sampling = Sampling(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    stream = await engine.generate(GenerateRequest(str(number), (f"{number}. {PROMPT}",), True, sampling))
    while not (await stream.next()).last:
        pass


async def _round(path: Path, tokens: int) -> list[float]:
    """Seconds to start, then tokens per second at each number of streams."""
    began = time.monotonic()
    engine = await TextClient.start(text_spec(str(path)))
    made = [time.monotonic() - began]
    try:
        await _answer(engine, 0, 8)  # the first tokens of a process are slower
        for streams in STREAMS:
            began = time.monotonic()
            await asyncio.gather(*(_answer(engine, i, tokens) for i in range(streams)))
            made.append(streams * tokens / (time.monotonic() - began))
    finally:
        await engine.stop()
    return made


def _size(path: Path) -> int:
    return sum(p.stat().st_size for p in path.iterdir()) if path.is_dir() else path.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL, help=".gguf file (default: the default model)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        convert(arguments.model, Path(scratch), print)
        sides = {"GGUF": arguments.model, "OpenVINO": Path(scratch)}
        rounds: dict[str, list[list[float]]] = {name: [] for name in sides}
        for _ in range(arguments.rounds):
            for name, path in sides.items():
                rounds[name].append(asyncio.run(_round(path, arguments.tokens)))
        rows = []
        for name, path in sides.items():
            start, *speeds = (median(column) for column in zip(*rounds[name], strict=True))
            rows.append([name, f"{_size(path) / 1e6:.0f}", f"{start:.1f}", *(f"{s:.0f}" for s in speeds)])
        print(table(["form", "MB", "start s", *(f"tok/s at {n}" for n in STREAMS)], rows))


if __name__ == "__main__":
    main()
