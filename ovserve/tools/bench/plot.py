"""The results as a plot. matplotlib is the extra `plot`, imported only here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ovserve.tools.bench.clients import Sample


def draw(answers: Sequence[Sample], title: str, file: Path) -> bool:
    """Write a PNG: the times of requests and their durations, and the distribution of durations.

    Returns False if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    good = [answer for answer in answers if not answer.error]
    bad = [answer.began for answer in answers if answer.error]
    figure = Figure(figsize=(10, 4), layout="constrained")
    over_time, spread = figure.subplots(1, 2)
    for name, times in (
        ("first token", [answer.first for answer in good]),
        ("whole answer", [answer.total for answer in good]),
    ):
        over_time.plot([answer.began for answer in good], times, ".", label=name)
        ordered = sorted(times)
        spread.plot(ordered, [(i + 1) / len(ordered) for i in range(len(ordered))], label=name)
    over_time.plot(bad, [0.0] * len(bad), "x", color="tab:red", label="failed")
    over_time.set(xlabel="request came, seconds", ylabel="seconds", ylim=(0, None))
    spread.set(xlabel="seconds", ylabel="part of the answers", ylim=(0, 1.02), xlim=(0, None))
    over_time.legend()
    spread.legend()
    figure.suptitle(title)
    figure.savefig(file, format="png", dpi=120)
    return True
