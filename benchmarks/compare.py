"""This server over HTTP against the bare engine, on the real default model. `make bench`, about 10 minutes.

    python -m benchmarks.compare [--quick] [--rounds 8] [--concurrency 1,8,32,64] [--tokens 128]
                                  [--json FILE] [--pin] [--least] [--starts N [--graph DIRECTORY]]

Both sides stay loaded and take turns: bare, server, server, bare, ... so a busy machine hurts both alike and
only ratios of neighbours count. A first round of each with most streams is shown and not counted. Every
request has a prompt of exactly 128 tokens that was not seen before and gets exactly `--tokens` tokens, greedy;
both are verified through `usage`. Exit status 1: an expectation failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import time
from pathlib import Path

from benchmarks import processes, report, starts
from benchmarks.measure import PROMPT_TOKENS, Round, Sides

Pairs = dict[int, list[report.Pair]]  # by streams
WAVES = {1: 2, 2: 2, 4: 2, 8: 2}  # requests per stream and round; 1 for more streams
PAUSE = 0.3  # seconds between two rounds


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _both(bare: Round, server: Round) -> str:
    return (
        f"bare {bare.tokens_per_second:6.1f} tokens/s, server {server.tokens_per_second:6.1f}, "
        f"ratio {server.tokens_per_second / bare.tokens_per_second:.3f}, "
        f"first token {(server.first_token - bare.first_token) * 1e3:+.0f} ms"
    )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare")
    parser.add_argument("--rounds", type=int, default=0, help="pairs of rounds per concurrency (default 8)")
    parser.add_argument("--concurrency", default="1,8,32,64", help="streams at once, comma-separated")
    parser.add_argument("--tokens", type=int, default=0, help="tokens per answer (default 128)")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 64 tokens: under a minute, noisy")
    parser.add_argument("--json", type=Path, help="write every round to this file")
    parser.add_argument("--starts", type=int, default=0, help="no rounds, only this many pairs of starts")
    parser.add_argument(
        "--graph", type=Path, default=processes.GRAPH, help="directory of the graph that --starts serves"
    )
    parser.add_argument("--least", action="store_true", help="measure the server of text_least.py too")
    parser.add_argument("--pin", action="store_true", help="server and client on the last core")
    chosen = parser.parse_args()
    chosen.rounds = chosen.rounds or (2 if chosen.quick else 8)
    chosen.tokens = chosen.tokens or (64 if chosen.quick else 128)
    chosen.concurrency = [int(c) for c in chosen.concurrency.split(",")]
    return chosen


def compare(chosen: argparse.Namespace) -> tuple[Pairs, Pairs, report.Memory]:
    """Return the rounds of this server and of the least one, each with those of the bare engine."""
    pairs: Pairs = {c: [] for c in chosen.concurrency}
    least: Pairs = {}
    with contextlib.ExitStack() as stack:
        bare = processes.BareEngine(processes.spec_of_graph())
        stack.callback(bare.stop)
        server, _ = processes.timed_server()
        stack.callback(processes.stop_server, server)
        sides = Sides(bare, server, server.engine_pid())
        run_of = {"bare": sides.bare_round, "server": sides.server_round}
        if chosen.least:
            third = processes.LeastServer(processes.spec_of_graph())
            stack.callback(third.stop)
            run_of["least"] = Sides(bare, third, third.engine_pid).server_round
        if chosen.pin:
            processes.on_last_core(server.process.pid, _log)
            processes.on_last_core(os.getpid(), _log)
        # In the first round with so many streams the KV caches grow, which docs/performance.md reports separately.
        most = max(chosen.concurrency)
        for count, at_once, tokens in ((8, 4, 16), (most, most, chosen.tokens)):
            warm = bare.prompts(count, PROMPT_TOKENS, seed=at_once)
            first = [run(list(warm), at_once, tokens) for run in run_of.values()]
        _log(f"not counted, {most:2} streams: {_both(first[0], first[1])}")
        for turn in range(chosen.rounds):
            for streams in chosen.concurrency:
                waves = 1 if chosen.quick else WAVES.get(streams, 1)
                prompts = bare.prompts(streams * waves, PROMPT_TOKENS, seed=1000 * turn + streams + 1)
                rounds = {}
                for side in list(run_of)[:: 1 if turn % 2 == 0 else -1]:
                    time.sleep(PAUSE)
                    rounds[side] = run_of[side](prompts, streams, chosen.tokens)
                pair = rounds["bare"], rounds["server"]
                pairs[streams].append(pair)
                if chosen.least:
                    least.setdefault(streams, []).append((rounds["bare"], rounds["least"]))
                _log(f"round {turn + 1}/{chosen.rounds}, {streams:2} streams: {_both(*pair)}")
        memory = report.Memory(*processes.memory(server.process.pid))
    return pairs, least, memory


def main() -> int:
    chosen = options()
    processes.exit_on_sigterm()
    began = time.monotonic()
    timed = starts.measure(chosen.starts or (1 if chosen.quick else 3), chosen.graph)
    if chosen.starts:
        return _tell([*report.HEAD, *starts.rows(timed), "", f"{_made(began)}."], starts.verdicts(timed))
    pairs, least, memory = compare(chosen)
    if chosen.json:
        rounds = [r.as_dict() for of in pairs.values() for pair in of for r in pair]
        chosen.json.write_text(json.dumps({"rounds": rounds, "starts": vars(timed)}, indent=1))
    made = (
        f"{_made(began)}: {chosen.rounds} pairs of rounds, {PROMPT_TOKENS} prompt tokens, {chosen.tokens} output "
        f"tokens, greedy; {os.cpu_count()} cores, Python {platform.python_version()}. {report.noise(pairs)}"
    )
    rows = [*report.table(pairs, timed, memory), *report.least_rows(least)]
    return _tell([*rows, "", made], report.verdicts(pairs, timed, memory))


def _made(began: float) -> str:
    command = " ".join(["python -m benchmarks.compare", *sys.argv[1:]])
    return f"Made by `{command}` on {time.strftime('%Y-%m-%d')} in {time.monotonic() - began:.0f} s"


def _tell(lines: list[str], verdicts: list[tuple[bool, str]]) -> int:
    print("\n".join([*lines, "", *(f"- {'pass' if good else 'FAIL'}: {text}" for good, text in verdicts)]))
    return 0 if all(good for good, _ in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
