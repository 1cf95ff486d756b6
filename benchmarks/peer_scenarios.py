"""Compares servers where a request is more than a prompt: conversations, JSON by a schema, tool calls.

    python -m benchmarks.peer_scenarios [--graph PATH] [--peers llama.cpp,vllm] [--streams 1,8]
                                        [--turns 6] [--tokens 64] [--rounds 2]

`make bench-peers` runs it after `peers.py`, whose servers it uses, in turns. Greedy.

- conversation: as many conversations at once as there are streams; each turn adds a question of about 60 tokens
  to all that was said. The first token after the question, in the second and in the last turn
- schema, tool: a list so long that `--tokens` cut it off, as a JSON answer and as the argument of a required
  tool call. Milliseconds of the whole answer per token, and behind it against the same kind of question
  without a schema, and with the tool but no call
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import client, processes
from benchmarks.contenders import Contender, ours, peer
from benchmarks.peer_setup import SETUPS
from benchmarks.peers import start
from tests.conftest import ROOT

CONTEXT = 2048
SPOKEN = 32  # tokens of an answer in a conversation
WORDS = ("river", "stone", "lantern", "harbour", "winter", "meadow", "copper", "thread", "garden", "signal")
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
LIST = {"type": "array", "items": PERSON, "minItems": 40}  # longer than an answer
SCHEMA = {"type": "object", "properties": {"people": LIST}, "required": ["people"]}
TOOL = {"type": "function", "function": {"name": "save_people", "parameters": SCHEMA}}
FORMS: dict[str, Mapping[str, Any]] = {
    "plain": {"ignore_eos": True},
    "schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "people", "schema": SCHEMA, "strict": True},
        }
    },
    "tools offered": {"tools": [TOOL], "tool_choice": "none", "ignore_eos": True},
    "tool": {"tools": [TOOL], "tool_choice": "required"},
}
AGAINST = {"schema": "plain", "tool": "tools offered"}

Figures = dict[tuple[str, int, str], list[float]]  # by server, streams, measure


def body(
    messages: Sequence[Mapping[str, str]], tokens: int, more: Mapping[str, Any], *, stream: bool
) -> bytes:
    told = {
        "model": "smollm2",
        "messages": messages,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
        **more,
    }
    return json.dumps(told).encode()


def asked(number: int, turn: int) -> dict[str, str]:
    """A question that no other conversation has."""
    told = " ".join(WORDS[(number * 5 + turn * 7 + i * (turn + 1)) % len(WORDS)] for i in range(40))
    return {"role": "user", "content": f"{number}.{turn}: tell me a story about {told}."}


async def post(port: int, path: str, text: bytes) -> tuple[float, float, bytes]:
    """Return the seconds until the first event with text, or of an answer that is not streamed its first
    byte, the seconds until the end, and the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    )
    began, first, answer = time.monotonic(), 0.0, b""
    writer.write(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)
    while piece := await reader.read(65536):
        answer += piece
        if not first and b'"content":"' in answer.replace(b'"content": ', b'"content":').replace(
            b'"content":""', b""
        ):
            first = time.monotonic() - began
    writer.close()
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"the server rejected the request: {answer[:600]!r}")
    return first, time.monotonic() - began, answer


def _spoken(answer: bytes) -> str:
    events = [
        json.loads(line[len(client.EVENT) :])
        for line in answer.splitlines()
        if line.startswith(client.EVENT) and not line.endswith(b"[DONE]")
    ]
    return "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])


async def conversation(port: int, path: str, number: int, turns: int) -> list[float]:
    """Return the seconds until the first token of each turn."""
    messages: list[dict[str, str]] = []
    made = []
    for turn in range(turns):
        messages.append(asked(number, turn))
        first, _, answer = await post(port, path, body(messages, SPOKEN, {"ignore_eos": True}, stream=True))
        made.append(first)
        messages.append({"role": "assistant", "content": _spoken(answer)})
    return made


async def form(port: int, path: str, number: int, tokens: int, more: Mapping[str, Any]) -> float:
    """Return seconds per token."""
    messages = [{"role": "user", "content": f"List {number} people of a small town."}]
    _, seconds, answer = await post(port, path, body(messages, tokens, more, stream=False))
    count = json.loads(answer[answer.index(b"{") : answer.rindex(b"}") + 1])["usage"]["completion_tokens"]
    if count != tokens:
        _log(f"an answer of {count} tokens, not {tokens}: its prompt weighs more")
    return seconds / count


def play(contender: Contender, chosen: argparse.Namespace, turn: int, streams: int, found: Figures) -> None:
    path = contender.completions.replace("completions", "chat/completions")
    numbers = [1000 * (turn + 1) + i for i in range(streams)]

    async def together(calls: Sequence[Any]) -> list[Any]:
        return await asyncio.gather(*calls)

    def note(measure: str, values: Sequence[float]) -> None:
        found.setdefault((contender.name, streams, measure), []).append(median(values) * 1e3)
        _log(f"{contender.name}, {streams} streams, {measure}: {median(values) * 1e3:.1f} ms")

    with contender.turn():
        talks = asyncio.run(together([conversation(contender.port, path, n, chosen.turns) for n in numbers]))
        note("second turn", [talk[1] for talk in talks])
        note("last turn", [talk[-1] for talk in talks])
        for at, (name, more) in enumerate(FORMS.items()):
            ask = partial(form, contender.port, path, tokens=chosen.tokens, more=more)
            try:
                asyncio.run(ask(at))  # grammars and tools are known from then on
                note(name, asyncio.run(together([ask(10 * n + at) for n in numbers])))
            except RuntimeError as error:
                _log(f"{contender.name}, {name}: {error}")


def table(found: Figures, names: Sequence[str], streams: Sequence[int]) -> list[str]:
    rows = [
        "| streams | server | second turn, ms | last turn, ms | plain, ms per token | schema | tool |",
        "|--:|---|--:|--:|--:|--:|--:|",
    ]
    for n in streams:
        for name in names:
            cells = []
            for measure in ("second turn", "last turn", "plain", "schema", "tool"):
                values = found.get((name, n, measure), [])
                against = found.get((name, n, AGAINST.get(measure, "")), [])
                if not values:
                    cells.append("not answered")
                    continue
                ratio = f" ({median(values) / median(against):.2f})" if against else ""
                cells.append(f"{median(values):.1f}{ratio}")
            rows.append(f"| {n} | {name} | {' | '.join(cells)} |")
    return rows


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peer_scenarios")
    parser.add_argument(
        "--graph", type=Path, default=ROOT / "models/smollm2", help="a graph directory of ours"
    )
    parser.add_argument("--peers", default=",".join(SETUPS), help="comma-separated")
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--turns", type=int, default=6, help="of a conversation")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer by a schema or of a tool call")
    parser.add_argument("--rounds", type=int, default=2)
    chosen = parser.parse_args()
    streams = [int(n) for n in chosen.streams.split(",")]
    processes.exit_on_sigterm()
    recipes = [ours(chosen.graph, "ovserve")]
    for name in filter(None, chosen.peers.split(",")):
        try:
            recipes.append(peer(name, max(streams), CONTEXT))
        except FileNotFoundError as error:
            _log(f"skipped: {error}")
    found: Figures = {}
    with contextlib.ExitStack() as stack:
        contenders = start(stack, recipes)
        for turn in range(chosen.rounds):
            for n in streams:
                for contender in contenders if turn % 2 == 0 else reversed(contenders):
                    play(contender, chosen, turn, n, found)
    print("\n".join(table(found, [c.name for c in contenders], streams)))


if __name__ == "__main__":
    main()
