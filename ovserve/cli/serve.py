"""`ovserve serve`: the command line of the server, built from the fields of Settings."""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import os
import sys
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import Field
from pathlib import Path
from typing import Any

from ovserve.cli import ovms_config
from ovserve.cli.graph_options import add_graph_options, add_plain_options, graph_options, plain_options
from ovserve.cli.parser import EXIT_USAGE, Commands
from ovserve.cli.progress import Shown
from ovserve.cli.pull import TASKS
from ovserve.engine.client.spare import Spare
from ovserve.engine.client.spawn import Child
from ovserve.errors import InvalidArgument, described
from ovserve.pull.packaged import DEFAULT_MODEL
from ovserve.server.environment import from_environment, parse, unknown_variables
from ovserve.server.option import GROUPS
from ovserve.server.ovms_flags import REFUSED, WITHOUT_EFFECT
from ovserve.server.settings import OPTIONS, Settings
from ovserve.server.settings_check import problem as problem_of
from ovserve.server.source import Served, resolve

log = logging.getLogger(__name__)

_NAMES = {o.name for o in OPTIONS}


class OvmsFlag(argparse.Action):
    """A flag of OVMS without an option here: a notice, or an error that says what to do instead."""

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


def add_to(commands: Commands) -> None:
    serve = commands.add_parser(
        "serve",
        help="serve a graph over HTTP",
        usage="ovserve serve [SOURCE] [--OPTION VALUE]...",
        description="Serves SOURCE: a short name or an id on the hub, which are pulled if needed, a .gguf "
        "file, a directory with a model, a graph or graphs, a graph.pbtxt, or a configuration file; by "
        f"default the model {DEFAULT_MODEL}. Every option is an environment variable too, OVSERVE_<NAME>; "
        "the flag wins.",
        allow_abbrev=False,
    )
    serve.add_argument("source", nargs="?", metavar="SOURCE", help="what to serve")
    add_options(serve)
    _add_ovms_flags(serve)
    add_graph_options(serve, "Options of the graph, for a model without one (docs/cli.md)")
    add_plain_options(serve)
    serve.add_argument(
        "--task", choices=TASKS, help="what the graph does (default: what the model's files say)"
    )
    ovms_config.add_to(serve)
    serve.set_defaults(run=_run)


def add_options(serve: argparse.ArgumentParser, without: Collection[str] = ()) -> None:
    """Add the flags of Settings, except those named in `without`."""
    visible = [o for o in OPTIONS if o.metadata["flag"] and o.name not in without]
    present = {o.metadata["group"] for o in visible}
    groups = {name: serve.add_argument_group(name) for name in GROUPS if name in present}
    for o in visible:
        note = "" if o.default == "" else f" (default: {o.default})"
        # No default here: a flag that is not given leaves the value to the environment.
        extra: dict[str, Any] = {"type": _reader(o), "default": argparse.SUPPRESS}
        extra["metavar"] = "|".join(o.metadata["choices"]) or type(o.default).__name__.upper()
        if isinstance(o.default, bool):
            extra |= {"nargs": "?", "const": True}
        help_ = f"{o.metadata['help']}{note}".replace("%", "%%")
        flags = [f"--{name}" for name in (o.name, *o.metadata["aliases"])]
        groups[o.metadata["group"]].add_argument(*flags, help=help_, **extra)


def _add_ovms_flags(serve: argparse.ArgumentParser) -> None:
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


def _run(arguments: argparse.Namespace) -> int:
    values = {"source_model": arguments.source} if arguments.source else {}
    if values and hasattr(arguments, "source_model"):
        print("ovserve serve: SOURCE and --source_model are the same; give one", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    values |= {name: value for name, value in vars(arguments).items() if name in _NAMES}
    notices = arguments.notices + unknown_variables(os.environ)
    try:
        settings = Settings(**from_environment(os.environ) | values)
        problem = None if ovms_config.edits_config(arguments) else problem_of(settings)
    except InvalidArgument as exc:
        problem = str(exc)
    if arguments.group_name and not arguments.add_to_config:
        problem = problem or "--group_name: needs --add_to_config; a graph of the command line is a group"
    if problem:
        print(f"ovserve serve: {problem}", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    if ovms_config.edits_config(arguments):
        repository = Path(settings.model_repository_path)
        ovms_config.run(arguments, repository, settings.config_path, settings.model_name, settings.model_path)
        return 0
    task = arguments.task or ""
    options = graph_options(arguments) | plain_options(arguments)
    served = resolve(settings, options, Shown(sys.stderr), task)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return _run_to_end(runner, _serve(settings, served, notices, getattr(arguments, "child", None)))


def _run_to_end(runner: asyncio.Runner, serving: Coroutine[Any, Any, int]) -> int:
    """Run it and return its result.

    A task or a callback of a graph's calculators may leave the loop with `sys.exit()`. The loop keeps its
    state and goes on.
    """
    server: asyncio.Task[int] | None = None

    async def main() -> int:
        nonlocal server
        server = asyncio.current_task()
        return await serving

    run: Callable[[], int] = lambda: runner.run(main())  # noqa: E731
    while True:
        try:
            return run()
        except (SystemExit, KeyboardInterrupt) as error:
            if server is None or server.done() or server.cancelling():
                raise  # not a calculator's: Ctrl-C before the server handles signals
            text = "a task of a calculator raised %s, which does not end the server"
            log.error(text, described(error), exc_info=error)
            run = functools.partial(runner.get_loop().run_until_complete, server)


async def _serve(settings: Settings, served: Served, notices: Iterable[str], child: Child | None) -> int:
    async with Spare(child) as spare:
        from ovserve.server.first_spec import first_spec
        from ovserve.server.listening import listening

        with listening(settings) as bound:
            if (spec := first_spec(served)) is not None:
                await spare.load(spec)
            # The rest of the server is imported while the engine process imports its libraries and loads.
            from ovserve.server.server import serve

            return await serve(settings, served, spare, bound, notices)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's loop if installed: it saves about a third of the cost of a message."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
