"""`ovserve rm`: remove pulled models from disk."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from ovserve.cli.local import DEFAULT, find, repository
from ovserve.cli.parser import EXIT_FAILED, Commands, size
from ovserve.errors import InvalidArgument
from ovserve.pull import record
from ovserve.pull.progress import size_of


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "rm",
        help="remove pulled models from disk",
        description="Removes folders that `ovserve pull` has filled, with the graph in them. What was not "
        "pulled is removed with --force only. A running server goes on with a model it has loaded.",
    )
    parser.add_argument("model", nargs="+", metavar="MODEL", help="the name of a pulled model")
    parser.add_argument("--model_repository_path", default="", metavar="PATH", help=f"(default: {DEFAULT})")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--force", action="store_true", help="remove a folder that pull has not filled, too")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    place = repository(arguments.model_repository_path)
    folders = [_checked(find(place, name), force=arguments.force) for name in arguments.model]
    for folder in folders:
        description = f"{folder} ({size(size_of(folder))})"
        if not (arguments.yes or _confirmed(description)):
            print(f"{folder} stays")  # noqa: T201
            return EXIT_FAILED
        _remove(folder, place)
        print(f"removed {description}")  # noqa: T201
    return 0


def _checked(folder: Path, *, force: bool) -> Path:
    if not record.read(folder).source and not force:
        raise InvalidArgument(f"{folder} was not filled by `ovserve pull`; --force removes it all the same")
    return folder


def _confirmed(description: str) -> bool:
    if not sys.stdin.isatty():
        raise InvalidArgument("stdin is not a terminal to ask at; --yes removes without asking")
    return input(f"remove {description}? [y/N] ").strip().lower() in ("y", "yes")


def _remove(folder: Path, place: Path) -> None:
    """Remove a folder, or the link to it; and the owner's folder once it is empty."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder)
    owner = folder.parent
    if owner != place and not any(owner.iterdir()):
        owner.rmdir()
