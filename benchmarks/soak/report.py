"""Slopes of the samples, whether they are growth, and how they look: text and PNG.

The slope is Theil and Sen's, the median of those of all pairs: a sample taken in the middle of a reload does not
turn it. The first part of a run does not count: caches fill, allocators take their share.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from benchmarks.soak.record import Sample

WARM_UP = 0.3  # of the samples
BLOCKS = "▁▂▃▄▅▆▇█"
COLUMNS = 60
LEAST_POINTS, MOST_POINTS = 10, 300  # of a slope: pairs grow with the square


@dataclass(frozen=True)
class Series:
    """`growth` and `part`: what the judged part of a run may add, in units or as a part of the middle. Neither:
    it is reported and not judged."""

    name: str
    field: str
    unit: str
    growth: float
    part: float


SERIES = (
    Series("server memory", "server_mb", "MB", 8, 0.05),
    Series("engine memory", "engine_mb", "MB", 0, 0),  # its cache grows as the load asks for it
    # The library's kernels for every number of tokens that a step has had (docs/reliability.md): a leak of
    # ours cannot be distinguished from that.
    Series("engine without cache", "engine_beside_cache_mb", "MB", 0, 0),
    # The kernels for each length are bounded (ovserve/engine/host/cpu.py). In a minute it grew
    # by 16 MB until all 64 were there; without a bound it is 1.5 MB for each of hundreds of lengths.
    Series("embeddings engine", "embeddings_mb", "MB", 40, 0.05),
    Series("speech engine", "speech_mb", "MB", 50, 0.05),
    Series("server descriptors", "server_descriptors", "", 12, 0.0),
    Series("engine descriptors", "engine_descriptors", "", 4, 0.0),
    Series("server CPU, answer", "server_cpu_ms", "ms", 0, 0.5),
    Series("first word, median", "latency_ms", "ms", 0, 0),  # other work on the machine moves it
)


@dataclass(frozen=True)
class Slope:
    series: Series
    points: Sequence[tuple[float, float]]  # minutes, value
    per_minute: float
    enough: bool  # points, to judge it

    @property
    def grown(self) -> float:
        """Compute the slopes over the part of the run that counts."""
        counts = _late(self.points)
        return self.per_minute * (counts[-1][0] - counts[0][0])

    @property
    def allowed(self) -> float:
        return max(self.series.growth, self.series.part * statistics.median(v for _, v in self.points))

    @property
    def fine(self) -> bool:
        return not (self.judged and self.enough) or self.grown <= self.allowed

    @property
    def judged(self) -> bool:
        return bool(self.series.growth or self.series.part)


def slopes(samples: Sequence[Sample]) -> list[Slope]:
    found = []
    for series in SERIES:
        values = [(s.minutes, getattr(s, series.field)) for s in samples]
        points = [(m, float(v)) for m, v in values if v is not None]
        late = _late(points)
        thin = late[:: max(1, len(late) // MOST_POINTS)]
        steep = [(b - a) / (n - m) for (m, a), (n, b) in combinations(thin, 2) if n > m]
        slope = statistics.median(steep) if steep else 0.0
        found.append(Slope(series, points or [(0.0, 0.0)], slope, len(late) >= LEAST_POINTS))
    return found


def _late(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    return points[int(len(points) * WARM_UP) :]


def text(found: Sequence[Slope]) -> str:
    lines = []
    for slope in found:
        values = [value for _, value in slope.points]
        series, unit = slope.series, slope.series.unit
        lines += [
            f"{series.name:<20} {_spark(values)}",
            f"{'':<20} {min(values):.0f} to {max(values):.0f} {unit}, "
            f"slope {slope.per_minute * 60:+.1f} {unit} an hour, grew {slope.grown:+.1f}"
            f"{_verdict(slope)}".replace("  ", " ").replace(" ,", ","),
        ]
    return "\n".join(lines)


def _verdict(slope: Slope) -> str:
    if not slope.judged:
        return f" {slope.series.unit}, not judged"
    verdict = "fine" if slope.fine else "GROWS"
    if not slope.enough:
        verdict = "too few samples to judge"
    return f" of {slope.allowed:.1f} {slope.series.unit} allowed: {verdict}"


def _spark(values: Sequence[float]) -> str:
    """One character for each of COLUMNS equal parts, from the least value to the largest."""
    least, most = min(values), max(values)
    columns = min(COLUMNS, len(values))
    parts = [values[i * len(values) // columns : (i + 1) * len(values) // columns] for i in range(columns)]
    scale = (len(BLOCKS) - 1) / (most - least) if most > least else 0.0
    return "".join(BLOCKS[round((statistics.fmean(part) - least) * scale)] for part in parts)


def picture(found: Sequence[Slope], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(found), 1, sharex=True, figsize=(9, 2 * len(found)))
    for axis, slope in zip(axes, found, strict=True):
        minutes, values = [m for m, _ in slope.points], [v for _, v in slope.points]
        axis.plot(minutes, values, linewidth=1)
        axis.axvspan(minutes[0], _late(slope.points)[0][0], color="0.93")  # the part that does not count
        axis.set_ylim(0, 1.15 * max(values) or 1)
        axis.set_ylabel(slope.series.unit or "count")
        told = text([slope]).splitlines()[1].strip()
        axis.set_title(f"{slope.series.name}: {told}", fontsize=9)
    axes[-1].set_xlabel("minutes")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
