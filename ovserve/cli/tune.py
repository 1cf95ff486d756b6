"""`ovserve tune`: measure which options of a graph are fastest here, and write a graph with them."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ovserve.cli.parser import Commands, table
from ovserve.errors import InvalidArgument
from ovserve.tools.tuning.graph_file import DIMENSIONS

if TYPE_CHECKING:  # imported where needed: --help does not need the engine's client
    from ovserve.tools.tuning.search import TuneResult

GOALS = {"latency": (1,), "throughput": (32,), "balanced": (1, 8, 32)}  # streams at a time
DEFAULT_BUDGET = "10m"
DEFAULT_OUTPUT = "graph.tuned.pbtxt"
UNITS = {"s": 1, "m": 60, "h": 3600}
BAR_CHARACTERS = 24  # characters


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "tune",
        help="measure which options of a graph are fastest on this machine",
        description="Runs the graph's own model with other precision hints, threads, streams, KV cache "
        "precisions and batched tokens, each in turns with the best so far, and writes the fastest into a "
        "new graph file with the results as comments. Stop servers first: other load distorts the results. "
        "Exit code 0: done, also if nothing is better than the graph as it is.",
    )
    parser.add_argument("graph", type=Path, help="a graph.pbtxt or its directory")
    parser.add_argument(
        "--for",
        dest="goal",
        choices=list(GOALS),
        default="balanced",
        help="the goal: tokens/s at 1 stream, at 32, or at 1, 8 and 32 alike (default: balanced)",
    )
    parser.add_argument("--concurrency", metavar="N,...", help="concurrent streams, instead of the goal's")
    parser.add_argument(
        "--budget",
        default=DEFAULT_BUDGET,
        help=f"time limit, such as 90s or 2h (default: {DEFAULT_BUDGET})",
    )
    parser.add_argument(
        "--output", type=Path, help=f"the new graph file (default: {DEFAULT_OUTPUT} next to the graph)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing graph file")
    parser.add_argument("--node", default="", help="node to tune, if several have an engine")
    parser.add_argument(
        "--only", metavar="NAME,...", default="", help=f"try only these, of {', '.join(DIMENSIONS)}"
    )
    parser.add_argument("--prompts", type=Path, help="file with your own prompts, one per line, text or JSON")
    parser.add_argument(
        "--weights",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="another form of the same model to try, a directory or a .gguf file; may be repeated",
    )
    parser.add_argument(
        "--allow_different_text",
        action="store_true",
        help="accept choices that change greedy answers; by default they are only reported",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ovserve.server.build import convert_when_loaded
    from ovserve.server.settings import Settings
    from ovserve.tools.tuning import graph_file, prompts
    from ovserve.tools.tuning.run import TuneOptions, tune

    seconds, streams = _seconds(arguments.budget), _streams(arguments.concurrency, arguments.goal)
    tuned = graph_file.find(arguments.graph, arguments.node)
    output = graph_file.check_output(
        tuned, arguments.output or tuned.base / DEFAULT_OUTPUT, force=arguments.force
    )
    for path in arguments.weights:
        if not path.exists():
            raise InvalidArgument(f"--weights: {path} does not exist")
    options = TuneOptions(
        arguments.goal,
        streams,
        seconds,
        output,
        arguments.allow_different_text,
        prompts.read(arguments.prompts) if arguments.prompts else (),
        [str(path.resolve()) for path in arguments.weights],
        _only(arguments.only),
        partial(convert_when_loaded, repository=Path(Settings.model_repository_path), say=print),
    )
    progress = Progress(seconds)
    try:
        result = asyncio.run(tune(tuned, options, progress))
    finally:
        progress.end()
    _tell(result, output)
    return 0


def _tell(result: TuneResult, output: Path) -> None:
    from ovserve.tools.tuning import report

    print(table(report.HEADER, report.rows(result)))  # noqa: T201
    if untried := report.untried(result):
        print(f"not tried for lack of time: {', '.join(untried)}")  # noqa: T201
    if report.bars(result):
        print(f"\n{report.plot(result)}\n")  # noqa: T201
    if result.options and result.final is not None:
        for line in report.by_streams(result.final):
            print(line)  # noqa: T201
        print(f"{report.texts(result)}\nwritten: {output}")  # noqa: T201
    else:
        measured = any(trial.match.pairs for trial in result.trials)
        why = (
            "nothing is better than the graph as it is"
            if measured
            else "--budget was too short to try anything"
        )
        print(f"{why}, so no graph was written")  # noqa: T201


class Progress:
    """A progress bar that is overwritten on a terminal; otherwise a line for each new step."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._terminal = sys.stderr.isatty()
        self._last = ""

    def __call__(self, part: float, text: str) -> None:
        num_filled, gone = round(part * BAR_CHARACTERS), part * self._seconds
        if self._terminal:
            bar = "#" * num_filled + "." * (BAR_CHARACTERS - num_filled)
            line = f"[{bar}] {gone:.0f} of {self._seconds:.0f} s  {text}"
            print(f"\r\x1b[2K{line[:100]}", end="", file=sys.stderr, flush=True)  # noqa: T201
        elif (subject := text.partition(":")[0]) != self._last:
            self._last = subject
            print(f"{part:4.0%}  {subject}", file=sys.stderr, flush=True)  # noqa: T201

    def end(self) -> None:
        if self._terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)  # noqa: T201


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if match is None or not float(match[1]):
        raise InvalidArgument(f"--budget: expected a time such as 90s, 10m or 2h, got {text!r}")
    return float(match[1]) * UNITS[match[2]]


def _only(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in DIMENSIONS:
            raise InvalidArgument(f"--only: there is no {name!r}; known: {', '.join(DIMENSIONS)}")
    return names


def _streams(text: str | None, goal: str) -> tuple[int, ...]:
    if text is None:
        return GOALS[goal]
    words = text.split(",")
    if not all(word.strip().isdigit() and int(word) > 0 for word in words):
        raise InvalidArgument(f"--concurrency: expected numbers from 1, such as 1,8,32; got {text!r}")
    return tuple(dict.fromkeys(int(word) for word in words))
