"""Starts of both sides, in turns: until each is ready, and until it has given a first token. Used by
`compare.py` and `report.py`.

The server is ready when its engine has answered once, which takes long the first time; the bare engine is
when its model is loaded, and pays for the same with the first request it gets. So there are two rows: the
first is what a probe for readiness waits for, the second what a user waits for.
"""

from __future__ import annotations

import compileall
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks import processes
from benchmarks.client import request
from benchmarks.measure import PROMPT_TOKENS, run_client
from tests.conftest import ROOT

MAX_SLOWER = 0.5  # seconds, until ready
MAX_SLOWER_TOKEN = 0.3  # until the first token


@dataclass
class Starts:
    """Seconds from spawn on."""

    bare: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    bare_token: list[float] = field(default_factory=list)
    server_token: list[float] = field(default_factory=list)


def measure(count: int, graph: Path = processes.GRAPH) -> Starts:
    """The bare engine loads the default graph's model. One after the other, nothing else running; the order within a pair alternates.

    The server's modules are compiled first, as pip compiles those of an installed package and of the bare
    side. With PYTHONDONTWRITEBYTECODE a checkout would be compiled anew at each start, which takes 0.3 s.
    """
    compileall.compile_dir(ROOT / "ovserve", quiet=1)
    spec, starts = processes.spec_of_graph(), Starts()
    prompts = processes.exact_prompts(count, PROMPT_TOKENS, seed=0)
    for turn, prompt in enumerate(prompts):
        for side in ("bare", "server") if turn % 2 == 0 else ("server", "bare"):
            if side == "bare":
                _bare(spec, prompt, starts)
            else:
                _server(graph, prompt, starts)
    return starts


def _bare(spec: dict[str, object], prompt: str, starts: Starts) -> None:
    bare = processes.BareEngine(spec)
    try:
        bare.known(prompt)
        [answer] = bare.run([prompt], 1, 1)
    finally:
        bare.stop()
    starts.bare.append(bare.start_seconds)
    starts.bare_token.append(bare.start_seconds + answer["times"][0] - answer["sent"])


def _server(graph: Path, prompt: str, starts: Starts) -> None:
    server, seconds = processes.timed_server(graph.absolute())
    try:
        [answer], _ = run_client(server.port, [request(server.port, prompt, 1)], 1)
    finally:
        processes.stop_server(server)
    starts.server.append(seconds)
    starts.server_token.append(seconds + answer.times[0] - answer.sent)


def rows(starts: Starts) -> list[str]:
    return [
        _row("start to ready, s", starts.bare, starts.server),
        _row("start to ready and a first token, s", starts.bare_token, starts.server_token),
    ]


def _row(name: str, bare: list[float], server: list[float]) -> str:
    slower = [s - b for b, s in zip(bare, server, strict=True)]
    return (
        f"| | {name} | {median(bare):.2f} | {median(server):.2f} "
        f"| {median(slower):+.2f} | {min(slower):+.2f}..{max(slower):+.2f} |"
    )


def verdicts(starts: Starts) -> list[tuple[bool, str]]:
    return [
        _verdict("ready", starts.bare, starts.server, MAX_SLOWER),
        _verdict("first token", starts.bare_token, starts.server_token, MAX_SLOWER_TOKEN),
    ]


def _verdict(name: str, bare: list[float], server: list[float], most: float) -> tuple[bool, str]:
    slower = median(s - b for b, s in zip(bare, server, strict=True))
    return slower <= most, f"start to {name}: {slower:+.2f} s, expected <= +{most:.1f} s"
