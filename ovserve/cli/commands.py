"""The subcommands: a file each, which adds itself to the parser and does its work."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Iterable
from importlib import import_module

from ovserve import __version__
from ovserve.cli.parser import EXIT_FAILED, Commands, Parser
from ovserve.engine.client.spawn import Child
from ovserve.errors import OvserveError

SUBCOMMANDS = (
    "run", "serve", "pull", "new", "ps", "show", "rm", "check", "explain", "doctor", "models", "reload",
    "key", "batch", "bench", "tune", "test_parser", "deploy", "completion",
)  # fmt: skip

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # of writing; the error does not name the file


def build_parser(subcommands: Iterable[str] = SUBCOMMANDS) -> Parser:
    parser = Parser(prog="ovserve", description="A graph-configured model server for OpenVINO models.")
    parser.add_argument("--version", action="version", version=f"ovserve {__version__}")
    commands: Commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    for name in subcommands:
        import_module(f"ovserve.cli.{name}").add_to(commands)
    commands.add_parser("version", help="print the version").set_defaults(run=_version)
    return parser


def run(argv: list[str], child: Child | None) -> int:
    """Run the command and return its exit code. `child` is a process for the first engine of a server."""
    subcommand = argv[0].replace("-", "_") if argv else ""
    # Import only one if that is enough: all of them take 0.1 s.
    parser = build_parser([subcommand] if subcommand in SUBCOMMANDS else SUBCOMMANDS)
    try:
        try:
            arguments = parser.parse_args(argv, argparse.Namespace(child=child))
            code: int = arguments.run(arguments)
        finally:
            sys.stdout.flush()
    except OvserveError as exc:
        print(f"ovserve: {exc}", file=sys.stderr)  # noqa: T201
        code = EXIT_FAILED
    except BrokenPipeError:  # whoever reads the output has ended, such as `head`
        _drop_output()
        code = 141  # as a shell says it of SIGPIPE
    except OSError as exc:
        if exc.filename is None and exc.errno not in FULL:
            raise  # it says nothing to the user
        if exc.filename is None:
            _drop_output()
        print(f"ovserve: {exc.filename or 'the output'}: {exc.strerror}", file=sys.stderr)  # noqa: T201
        code = EXIT_FAILED
    return code


def _drop_output() -> None:
    """Let the flush at the end of the process succeed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version(arguments: argparse.Namespace) -> int:
    print(f"ovserve {__version__}")  # noqa: T201
    return 0
