"""`make speed-chart`: draw docs/images/speed.svg from the table of peers in benchmarks/measurements.md.

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
TABLE = "With AVX-512 in bf16 but without AMX, on the graph"  # the paragraph above the table that is drawn

WIDTH, HEIGHT, BASE, TOP = 700, 330, 270, 90  # pixels; bars stand on BASE and reach TOP at most
GROUP, BAR, GAP = 160, 36, 6
COLOURS = ("#2f6feb", "#9aa4b2", "#c9a26b")
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328}.small{font-size:12px;fill:#656d76}"
    ".title{font-size:15px;font-weight:600}line{stroke:#8c959f}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}}"
)


@dataclass(frozen=True)
class Series:
    """Tokens per second of one server, by the number of streams."""

    name: str
    values: tuple[float, ...]


def read_table(text: str) -> tuple[list[str], list[Series]]:
    """Return the numbers of streams and the series of the table. Raises ValueError when it is not there."""
    lines = text.partition(TABLE)[2].split("\n")
    table = takewhile(
        lambda line: line.startswith("|"), dropwhile(lambda line: not line.startswith("|"), lines)
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    if not rows:
        raise ValueError(f"{SOURCE.name} has no table after {TABLE!r}")
    head, body = rows[0], rows[2:]
    columns = [i for i, title in enumerate(head) if title.endswith("tokens/s")]
    series = [Series(head[i].split(",")[0], tuple(float(row[i]) for row in body)) for i in columns]
    return [row[0] for row in body], series


def draw(streams: list[str], series: list[Series]) -> str:
    """Return the chart as SVG: a group of bars for each number of streams, each bar with its value."""
    most = max(value for one in series for value in one.values)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="Tokens per second of ovserve, llama.cpp and vLLM by the number of streams">',
        f"<style>{STYLE}</style>",
        '<text class="title" x="24" y="28">Tokens per second on two CPU cores, SmolLM2-135M</text>',
    ]
    for number, one in enumerate(series):
        x = 24 + 95 * number
        out.append(f'<rect x="{x}" y="43" width="12" height="12" rx="2" fill="{COLOURS[number]}"/>')
        out.append(f'<text x="{x + 18}" y="54">{one.name}</text>')
    for place, label in enumerate(streams):
        left = 44 + GROUP * place
        for number, one in enumerate(series):
            value = one.values[place]
            height = (BASE - TOP) * value / most
            x = left + number * (BAR + GAP)
            out.append(
                f'<rect x="{x}" y="{BASE - height:.1f}" width="{BAR}" height="{height:.1f}" rx="3" '
                f'fill="{COLOURS[number]}"/>'
            )
            out.append(
                f'<text class="small" text-anchor="middle" x="{x + BAR / 2:g}" y="{BASE - height - 6:.1f}">'
                f"{value:.0f}</text>"
            )
        middle = left + (len(series) * (BAR + GAP) - GAP) / 2
        plural = "" if label == "1" else "s"
        out.append(f'<text text-anchor="middle" x="{middle:g}" y="{BASE + 22}">{label} stream{plural}</text>')
    out.append(f'<line x1="24" x2="{WIDTH - 24}" y1="{BASE}" y2="{BASE}"/>')
    out.append(
        f'<text class="small" x="24" y="{HEIGHT - 12}">make bench-peers, prompts of 128 tokens, answers of 64, '
        "no drafts, AMD EPYC without AMX, 2026-11-24</text>"
    )
    return "\n".join([*out, "</svg>", ""])


def main() -> int:
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(*read_table(SOURCE.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
