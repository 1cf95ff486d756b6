"""`ovserve models`: list the graphs and models on disk, with their properties."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from ovserve.cli.parser import EXIT_FAILED, Commands, size, table
from ovserve.errors import LoadError

if TYPE_CHECKING:
    from ovserve.llm.parsing.registry import ParserChoice

HEADER = ("kind", "name", "size", "architecture", "context", "tool parser", "reasoning parser", "path")
PLACES = ("graphs", "models")


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "models",
        help="list graphs and models on disk",
        description="Lists graphs and models with their size, architecture, context and parsers.",
    )
    parser.add_argument(
        "path",
        nargs="*",
        type=Path,
        help=f"directories or files (default: {' and '.join(PLACES)}, if present)",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    places = [p for p in map(Path, PLACES) if p.is_dir()]
    rows = asyncio.run(_rows(arguments.path or places))
    if not rows:
        print("no graphs and no models found")  # noqa: T201
        return EXIT_FAILED
    print(table(HEADER, rows))  # noqa: T201
    return 0


async def _rows(paths: list[Path]) -> list[list[str]]:
    from ovserve.calculators.shipped import shipped_registry
    from ovserve.sandbox.templates import Templates
    from ovserve.serving.check import graphs_below, model_places, models_at, report

    registry, templates = shipped_registry(), Templates()
    rows: list[list[str]] = []
    try:
        for path in paths:
            try:
                specs = graphs_below(path)
            except LoadError:
                specs = ()
            for spec in specs:
                one = await report(spec, registry, templates)
                what = [_described(m.size.weights, m.architecture, m.context, m.parsers) for m in one.models]
                place = str(spec.graph) + "".join(f": {text}" for text in one.errors[:1])
                rows += [["graph", spec.name, *each, place] for each in what or [["-"] * 5]]
            for where in model_places(path):
                at = models_at(where)
                described = _described(at.weights, at.architecture, at.context, at.parsers)
                rows.append(["model", where.name, *described, f"{where}{at.fault and f': {at.fault}'}"])
    finally:
        await templates.stop()
    return rows


def _described(
    weights: int, architecture: str, context: int | None, parsers: ParserChoice | None
) -> list[str]:
    names = (parsers.tool or "none", parsers.reasoning or "none") if parsers is not None else ("-", "-")
    return [size(weights), architecture, str(context or "-"), *names]
