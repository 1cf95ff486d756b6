"""The results as a plot. matplotlib is the extra `plot`, imported only here."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from ovserve.tools.tuning.report import bars
from ovserve.tools.tuning.search import TuneResult


def draw(result: TuneResult, title: str, file: Path) -> bool:
    """Write a PNG; return False if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    reversed_bars = list(reversed(bars(result)))
    figure = Figure(figsize=(9, 1.2 + 0.3 * len(reversed_bars)), layout="constrained")
    axes = figure.subplots()
    axes.axvspan(1 - result.noise, 1 + result.noise, color="0.9", label="noise")
    for y, (_, ratios) in enumerate(reversed_bars):
        middle = median(ratios)
        better = middle > 1 + result.noise
        axes.plot([min(ratios), max(ratios)], [y, y], color="0.5", linewidth=2)
        axes.plot(ratios, [y] * len(ratios), "|", color="0.3")
        axes.plot([middle], [y], "o", color="tab:green" if better else "tab:gray")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(reversed_bars)), [name for name, _ in reversed_bars])
    axes.set_xlabel("tokens per second against the best before it (pairs of rounds, median)")
    axes.set_title(title)
    axes.legend(loc="lower right")
    figure.savefig(file, format="png", dpi=120)
    return True
