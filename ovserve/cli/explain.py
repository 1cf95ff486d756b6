"""`ovserve explain GRAPH`: the graph as a picture in the terminal, without loading a model."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from ovserve.cli.parser import Commands, colours
from ovserve.errors import LoadError

OF_MODELS = ("models_path", "model_path", "draft_models_path")  # a graph is drawn without these files


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "explain",
        help="draw a graph with the ports, types and options of its nodes",
        description="Draws a graph: nodes from top to bottom, and a line for each stream from the output "
        "that writes it to the inputs that read it. The graph is checked as at a start; no model is loaded.",
    )
    parser.add_argument("graph", type=Path, help="a graph.pbtxt or its directory")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ovserve.calculators.shipped import shipped_registry
    from ovserve.serving.check import find
    from ovserve.serving.loader import check
    from ovserve.tools.explain import diagram, draw_text

    repository = find(arguments.graph)
    if len(repository.specs) != 1:
        raise LoadError(f"{arguments.graph} has {len(repository.specs)} graphs; name one of them")
    registry = shipped_registry()
    try:
        checked = check(repository.specs[0], registry)
    except LoadError as error:
        if any(each.field not in OF_MODELS for each in (error, *error.others)):
            raise
        for each in (error, *error.others):
            sys.stderr.write(f"warning: {each}\n")
        checked = check(repository.specs[0], registry, models=False)
    checked.graph.close()
    plain = not (sys.stdout.encoding or "ascii").lower().startswith("utf")
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    picture = draw_text(diagram(checked), ascii_only=plain, width=width, coloured=colours(sys.stdout))
    sys.stdout.write(picture)
    return 0
