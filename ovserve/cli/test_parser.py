"""`ovserve test-parser NAME VECTORS...`: verify that a dialect parses vectors as expected, however they are
cut."""

from __future__ import annotations

import argparse
from pathlib import Path

from ovserve.cli.parser import EXIT_FAILED, Commands
from ovserve.llm.parser_proof import validate


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "test-parser",
        help="test a tool or reasoning parser with vectors",
        description="Parses the text of each vector whole, by character, by byte and cut at every position, "
        "and reports every unexpected result, and streams that differ from the whole. "
        "Exit code 1: some vector failed. CONTRIBUTING.md describes vectors.",
    )
    parser.add_argument("name", help="a tool or reasoning parser, shipped or of an installed package")
    parser.add_argument("vectors", nargs="+", type=Path, help="JSON files of vectors")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    failed = validate(arguments.name, arguments.vectors, print)
    return EXIT_FAILED if failed else 0
