"""Compares this server with llama.cpp's and vLLM's on the same model, over HTTP. `make bench-peers`, about 15 minutes.

    python -m benchmarks.peers [--graph PATH]... [--peers llama.cpp,vllm] [--rounds 3]
                                [--concurrency 1,8,32,64] [--prompt 128] [--tokens 64] [--no-drafts] [--wait] [--json FILE]

`peer_setup.py` has put the peers into .peers/; a missing one is reported and skipped. All servers stay
loaded and take turns within a round, the order turning by one from round to round; the rest sleeps meanwhile.
Prompts have `--prompt` tokens and are new in every round, the same to all; answers have `--tokens`, greedy. Several
`--graph` compare graphs of ours with each other. The prompts are random words, to which answers repeat
themselves, so that drafts are right more often than in chats; with `--no-drafts` this server has none. `--wait` waits for a line on standard input once all is
loaded, so that the machine can be made quiet. Prints a table for benchmarks/measurements.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks import client, processes
from benchmarks.contenders import Contender, Recipe, ours, peer
from benchmarks.peer_setup import SETUPS
from tests.conftest import ROOT

WAVES = {1: 3, 8: 2}  # requests per stream and round; 1 for more streams
PAUSE = 0.3  # seconds between two turns
SETTLE = 8.0  # seconds for each server before the first turn: ours compiles more forms of its model


@dataclass
class Turn:
    """One server, one round, one number of streams. Times in seconds."""

    server: str
    streams: int
    tokens_per_second: float
    first_token: float  # median
    gap_p50: float
    others_cores: float  # kept busy by processes that are not the servers' or ours


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument(
        "--graph", type=Path, action="append", help="a graph directory of ours; may be repeated"
    )
    parser.add_argument("--peers", default=",".join(SETUPS), help="comma-separated; empty for none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", default="1,8,32,64", help="streams at once, comma-separated")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--no-drafts", action="store_true", help="ask our servers for plain decoding")
    parser.add_argument("--wait", action="store_true", help="for a line on stdin before measuring")
    parser.add_argument("--json", type=Path, help="write every turn to this file")
    chosen = parser.parse_args()
    chosen.graph = chosen.graph or [ROOT / "models/smollm2"]  # that `make serve` serves
    chosen.concurrency = [int(c) for c in chosen.concurrency.split(",")]
    return chosen


def recipes(chosen: argparse.Namespace) -> list[Recipe]:
    names = ["-".join(graph.resolve().parts[-2:]) for graph in chosen.graph]
    found = [
        ours(graph, "ovserve" if len(names) == 1 else f"ovserve {name}")
        for graph, name in zip(chosen.graph, names, strict=True)
    ]
    context = 2 * (chosen.prompt + chosen.tokens)
    for name in filter(None, chosen.peers.split(",")):
        try:
            found.append(peer(name, max(chosen.concurrency), context))
        except FileNotFoundError as error:
            _log(f"skipped: {error}; `python -m benchmarks.peer_setup {name}` would set it up")
    return found


def start(stack: contextlib.ExitStack, found: list[Recipe]) -> list[Contender]:
    contenders = []
    for recipe in found:
        try:
            contenders.append(_started(recipe))
        except RuntimeError as error:
            _log(f"skipped: {error}")
            continue
        stack.callback(contenders[-1].stop)
        _log(f"{recipe.name} is ready after {contenders[-1].start_seconds:.1f} s")
    return contenders


def _started(recipe: Recipe) -> Contender:
    try:
        return Contender(recipe)
    except RuntimeError:
        if not recipe.fallback:
            raise
    _log(f"{recipe.name} did not start; once more with {' '.join(recipe.fallback)}")
    return Contender(recipe.with_fallback())


def turn(
    contender: Contender, prompts: Sequence[str | list[int]], streams: int, chosen: argparse.Namespace
) -> Turn:
    size, tokens = chosen.prompt, chosen.tokens
    plain = chosen.no_drafts and contender.name.startswith("ovserve")
    more = {"num_assistant_tokens": 0} if plain else {}
    requests = [
        client.request(contender.port, prompt, tokens, path=contender.completions, more=more)
        for prompt in prompts
    ]
    busy, own, began = processes.machine_busy(), time.process_time(), time.monotonic()
    group = contender.cpu()
    with contender.turn(), asyncio.Runner(loop_factory=client.new_event_loop) as runner:
        answers = runner.run(client.run(contender.port, requests, streams))
    seconds = time.monotonic() - began
    used = contender.cpu() - group + time.process_time() - own
    others = max(0.0, processes.machine_busy() - busy - used) / seconds
    for answer in answers:
        answer.read()
        if answer.completion_tokens != tokens or abs(answer.prompt_tokens - size) > 1:
            told = f"{answer.prompt_tokens} and {answer.completion_tokens}"
            raise RuntimeError(f"{contender.name}: {told} tokens, not {size} and {tokens}")
    first, last = min(a.sent for a in answers), max(a.times[-1] for a in answers)
    gaps = [b - a for answer in answers for a, b in itertools.pairwise(answer.times)]
    return Turn(
        contender.name,
        streams,
        len(answers) * tokens / (last - first),
        median(a.times[0] - a.sent for a in answers),
        median(gaps),
        others,
    )


def play(contenders: list[Contender], chosen: argparse.Namespace, bare: processes.BareEngine) -> list[Turn]:
    turns: list[Turn] = []
    warm = bare.prompts(4, chosen.prompt, seed=0)
    for contender in contenders:
        turn(contender, list(warm), min(4, max(chosen.concurrency)), chosen)
        with contender.turn():
            time.sleep(SETTLE)
    if chosen.wait:
        _log("all is loaded; a line on standard input begins")
        sys.stdin.readline()
    for number in range(chosen.rounds):
        at = number % len(contenders)
        for streams in chosen.concurrency:
            count = streams * WAVES.get(streams, 1)
            prompts = bare.prompts(count, chosen.prompt, seed=1000 * number + streams + 1)
            for contender in contenders[at:] + contenders[:at]:
                time.sleep(PAUSE)
                turns.append(turn(contender, prompts, streams, chosen))
                _log(
                    f"round {number + 1}/{chosen.rounds}, {streams:2} streams: {contender.name:20} "
                    f"{turns[-1].tokens_per_second:6.1f} tokens/s"
                )
    return turns


def table(turns: list[Turn], names: list[str], streams: list[int]) -> list[str]:
    """Ratios are taken round by round: the first server's speed against each other one's."""
    rows = [
        f"| streams | server | tokens/s | min..max | {names[0]} against it | min..max | first token, ms | gap, ms |",
        "|--:|---|--:|--:|--:|--:|--:|--:|",
    ]
    for c in streams:
        of = {name: [t for t in turns if t.server == name and t.streams == c] for name in names}
        for name in names:
            speeds = [t.tokens_per_second for t in of[name]]
            against = [a.tokens_per_second / b for a, b in zip(of[names[0]], speeds, strict=True)]
            compared = (
                " | "
                if name == names[0]
                else f"{median(against):.2f} | {min(against):.2f}..{max(against):.2f}"
            )
            rows.append(
                f"| {c} | {name} | {median(speeds):.1f} | {min(speeds):.1f}..{max(speeds):.1f} | {compared} "
                f"| {median(t.first_token for t in of[name]) * 1e3:.0f} "
                f"| {median(t.gap_p50 for t in of[name]) * 1e3:.1f} |"
            )
    return rows


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    chosen = options()
    processes.exit_on_sigterm()
    with contextlib.ExitStack() as stack:
        bare = processes.BareEngine(processes.spec_of_graph())  # it only makes prompts
        stack.callback(bare.stop)
        contenders = start(stack, recipes(chosen))
        if not contenders:
            return 1
        began = time.monotonic()
        turns = play(contenders, chosen, bare)
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(t) for t in turns], indent=1))
    others = [t.others_cores for t in turns]
    command = " ".join(["python -m benchmarks.peers", *sys.argv[1:]])
    print(
        "\n".join(
            [
                *table(turns, [c.name for c in contenders], chosen.concurrency),
                "",
                f"Made by `{command}` on {time.strftime('%Y-%m-%d')} in {time.monotonic() - began:.0f} s: "
                f"{chosen.rounds} rounds, {chosen.prompt} prompt tokens, {chosen.tokens} output tokens, greedy; "
                f"{os.cpu_count()} cores, Python {platform.python_version()}. Other processes kept "
                f"{median(others):.2f} cores busy (median of turns; most {max(others):.2f}).",
            ]
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
