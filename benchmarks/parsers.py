"""Measures what output parsers cost: an answer of 4,000 deltas, for every dialect. `python -m benchmarks.parsers`.

Four answers each, of 16,000 characters in pieces of four: prose; one call with a long argument; reasoning and
many short calls; and noise, the dialect's own markers over and over, the worst that text can do. Each number
is the least of a few runs, in milliseconds for the whole answer; the last column is microseconds per delta of
the slowest of the first three. No model, no server.
"""

from __future__ import annotations

import argparse
import time

from ovserve.llm.parsing import make_parser
from ovserve.llm.parsing.registry import default
from tests.llm.parsing.test_roundtrip import TOOLS, WRITERS

DELTAS, SIZE = 4000, 4
PROSE = "An answer in plain words, with a < or a [ and {here} and there. "
RUNS = 3


def fill(text: str) -> str:
    return (text * (DELTAS * SIZE // len(text) + 1))[: DELTAS * SIZE]


def answers(name: str) -> dict[str, tuple[str, str | None]]:
    """Text and reasoning parser of each answer."""
    dialect = default().tool(name)
    assert dialect is not None
    write = WRITERS[name]
    short = write([("get_weather", {"s": "Oslo", "n": 3})])
    many = "<think>\n" + PROSE * 60 + "\n</think>\n\n" + short * ((DELTAS * SIZE - 4000) // len(short))
    noise = (*dialect.markers, dialect.bare, '{"name": "a", "arguments": {"x": "', "f(a='", "<parameter=x>")
    return {
        "prose": (fill(PROSE), None),
        "long": (write([("get_weather", {"text": fill(PROSE.replace("<", "-"))})]), None),
        "many": (many, None if dialect.framed else "qwen3"),
        "noise": (fill("".join(noise)), None),
    }


def milliseconds(name: str, reasoning: str | None, text: str) -> tuple[float, int]:
    pieces = [text[at : at + SIZE] for at in range(0, len(text), SIZE)]
    best = float("inf")
    for _ in range(RUNS):
        parser = make_parser(name, reasoning, TOOLS, False)
        began = time.perf_counter()
        for piece in pieces:
            parser.feed(piece)
        parser.finish()
        best = min(best, time.perf_counter() - began)
    return best * 1000, len(pieces)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", help="one dialect")
    only = arguments.parse_args().only
    print(f"{'dialect':18}{'prose':>8}{'long':>8}{'many':>8}{'noise':>8}   us/delta")
    for name in [only] if only else default().tool_names:
        row = {kind: milliseconds(name, r, text) for kind, (text, r) in answers(name).items()}
        slowest = max(ms / deltas for kind, (ms, deltas) in row.items() if kind != "noise")
        cells = "".join(f"{ms:8.1f}" for ms, _ in row.values())
        print(f"{name:18}{cells}{slowest * 1000:11.2f}")


if __name__ == "__main__":
    main()
