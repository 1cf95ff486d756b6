"""`make speed-chart`: draw docs/images/speed.svg from two tables in benchmarks/measurements.md.

The figures stand once, in the document; tests/test_docs.py compares the picture with them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "benchmarks/measurements.md"
PICTURE = ROOT / "docs/images/speed.svg"
# Title of a chart, the paragraph above its table, and how it was measured.
TABLES = (
    (
        "SmolLM2-135M",
        "With AVX-512 in bf16 but without AMX, on the graph",
        "make bench-peers, prompts of 128 tokens, AMD EPYC, 2026-11-24",
    ),
    (
        "3 billion parameters, 4 bits",
        "With AVX-512 in bf16 and VNNI, all 28 layers",
        "make bench-real, prompts of 512 tokens, AMD EPYC, 2026-11-29",
    ),
)

HEIGHT, BASE, TOP, MARGIN = 330, 262, 100, 24  # pixels; bars stand on BASE and reach TOP at most
GROUP, BAR, GAP = 108, 28, 4
LEGEND = 102  # pixels for the name of a series
COLOURS = {"ovserve": "#2f6feb", "ovserve int4": "#7da7f8", "llama.cpp": "#9aa4b2", "vLLM": "#c9a26b"}
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328}.small{font-size:11px;fill:#656d76}"
    ".title{font-size:15px;font-weight:600}line{stroke:#8c959f}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}}"
)


@dataclass(frozen=True)
class Series:
    """Tokens per second of one server, by the number of streams."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Chart:
    title: str
    source: str
    streams: list[str]
    series: list[Series]

    @property
    def width(self) -> int:
        return GROUP * len(self.streams)


def read_charts(text: str) -> list[Chart]:
    """Return the charts of measurements.md. Raises ValueError for a table that is not there."""
    return [Chart(title, source, *_read_table(text, above)) for title, above, source in TABLES]


def _read_table(text: str, above: str) -> tuple[list[str], list[Series]]:
    """Return the numbers of streams and the series of the table below a paragraph."""
    lines = text.partition(above)[2].split("\n")
    table = takewhile(
        lambda line: line.startswith("|"), dropwhile(lambda line: not line.startswith("|"), lines)
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    if not rows:
        raise ValueError(f"{SOURCE.name} has no table after {above!r}")
    head, body = rows[0], rows[2:]
    columns = [i for i, title in enumerate(head) if title.endswith("tokens/s")]
    series = [Series(head[i].split(",")[0], tuple(float(row[i]) for row in body)) for i in columns]
    return [row[0] for row in body], series


def draw(charts: list[Chart]) -> str:
    """Return SVG: for each chart a group of bars for each number of streams, each bar with its value."""
    width = MARGIN + sum(chart.width + 2 * MARGIN for chart in charts)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" role="img" '
        'aria-label="Tokens per second of ovserve, llama.cpp and vLLM by the number of streams, for a small model '
        'and one of 3 billion parameters">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="{MARGIN}" y="28">Tokens per second of all streams on two CPU cores</text>',
    ]
    left = MARGIN
    for chart in charts:
        out += _draw_chart(chart, left)
        left += chart.width + 2 * MARGIN
    return "\n".join([*out, "</svg>", ""])


def _draw_chart(chart: Chart, left: int) -> list[str]:
    out = [f'<text x="{left}" y="54">{chart.title}</text>']
    for number, one in enumerate(chart.series):
        x = left + LEGEND * number
        out.append(f'<rect x="{x}" y="66" width="11" height="11" rx="2" fill="{COLOURS[one.name]}"/>')
        out.append(f'<text class="small" x="{x + 16}" y="76">{one.name}</text>')
    most = max(value for one in chart.series for value in one.values)
    for place, label in enumerate(chart.streams):
        begin = left + GROUP * place
        for number, one in enumerate(chart.series):
            value = one.values[place]
            height = (BASE - TOP) * value / most
            x = begin + number * (BAR + GAP)
            out.append(
                f'<rect x="{x}" y="{BASE - height:.1f}" width="{BAR}" height="{height:.1f}" rx="3" '
                f'fill="{COLOURS[one.name]}"/>'
            )
            shown = f"{value:.0f}" if most >= 100 else f"{value:.1f}"
            out.append(
                f'<text class="small" text-anchor="middle" x="{x + BAR / 2:g}" y="{BASE - height - 6:.1f}">'
                f"{shown}</text>"
            )
        middle = begin + (len(chart.series) * (BAR + GAP) - GAP) / 2
        plural = "" if label == "1" else "s"
        out.append(f'<text text-anchor="middle" x="{middle:g}" y="{BASE + 22}">{label} stream{plural}</text>')
    out.append(f'<line x1="{left}" x2="{left + chart.width}" y1="{BASE}" y2="{BASE}"/>')
    out.append(f'<text class="small" x="{left}" y="{HEIGHT - 14}">{chart.source}</text>')
    return out


def main() -> int:
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(read_charts(SOURCE.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
