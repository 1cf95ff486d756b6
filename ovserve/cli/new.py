"""`ovserve new calculator NAME` and `ovserve new graph NAME --model PATH`: a skeleton that works."""

from __future__ import annotations

import argparse
from pathlib import Path

from ovserve.cli.local import names_in, repository
from ovserve.cli.parser import Commands, Parser


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "new",
        help="write a calculator or a graph to begin with",
        description="Writes a calculator with options and a test, or a graph with such a calculator. "
        "Existing files are not overwritten.",
        allow_abbrev=False,
    )
    kinds = parser.add_subparsers(dest="kind", required=True, parser_class=Parser)
    calculator = kinds.add_parser(
        "calculator", help="calculators.py and a test, or one more module beside them", allow_abbrev=False
    )
    calculator.add_argument("name", metavar="NAME", help="such as MaskNames")
    calculator.add_argument(
        "--directory", type=Path, default=Path(), metavar="PATH", help="that of the graph (default: this one)"
    )
    calculator.set_defaults(run=_calculator)
    graph = kinds.add_parser(
        "graph", help="a directory with a graph, a calculator and a test", allow_abbrev=False
    )
    graph.add_argument("name", metavar="NAME", help="directory to write; its last part is the model's name")
    graph.add_argument(
        "--model",
        required=True,
        metavar="MODEL",
        help="a pulled model, a .gguf file or a directory with a model",
    )
    graph.set_defaults(run=_graph)


def _calculator(arguments: argparse.Namespace) -> int:
    from ovserve.cli.skeleton import new_calculator

    new_calculator(arguments.name, arguments.directory, _say)
    return 0


def _graph(arguments: argparse.Namespace) -> int:
    from ovserve.cli.skeleton import new_graph

    model = arguments.model
    place = repository()
    if not Path(model).exists() and model in names_in(place):
        model = str(place / model)
    new_graph(arguments.name, model, Path(arguments.name), _say)
    return 0


def _say(text: str) -> None:
    print(text)  # noqa: T201
