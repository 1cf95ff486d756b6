"""The command `ovserve`: one file per subcommand, each adding itself to the parser and doing its work.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted. Called by the entry point and by `__main__`.
"""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from ovserve import __version__
from ovserve.cli import bench, check, key, models, pull, reload, serve, test_parser, tune
from ovserve.cli.parser import EXIT_FAILED, Commands, Parser
from ovserve.errors import OvserveError

SUBCOMMANDS = (serve, pull, check, models, reload, key, bench, tune, test_parser)


def build_parser() -> Parser:
    parser = Parser(prog="ovserve", description="A graph-configured model server for OpenVINO models.")
    parser.add_argument("--version", action="version", version=f"ovserve {__version__}")
    commands: Commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    for each in SUBCOMMANDS:
        each.add_to(commands)
    commands.add_parser("version", help="print the version").set_defaults(run=_version)
    return parser


def main(argv: list[str] | None = None) -> NoReturn:
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0].startswith("--") and argv[0] not in ("--help", "--version"):
        # As one writes it for OVMS.
        argv = ["pull", *(a for a in argv if a != "--pull")] if "--pull" in argv else ["serve", *argv]
    arguments = build_parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except OvserveError as exc:
        print(f"ovserve: {exc}", file=sys.stderr)  # noqa: T201
        code = EXIT_FAILED
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _version(arguments: argparse.Namespace) -> int:
    print(f"ovserve {__version__}")  # noqa: T201
    return 0
