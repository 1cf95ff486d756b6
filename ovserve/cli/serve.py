"""`ovserve serve`: the command line of the server, built from the fields of Settings.

OVMS's --add_to_config, --remove_from_config and --list_models edit a configuration, without serving. A
running server takes the change up, because it polls the file. It is replaced by one rename, so that no reader
sees half of it.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import logging
import os
import sys
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any

from ovserve.cli.local import names_in
from ovserve.cli.parser import (
    EXIT_USAGE,
    Commands,
    add_graph_options,
    add_ovms_flags,
    add_plain_options,
    graph_options,
    plain_options,
    reader,
)
from ovserve.cli.progress import Shown
from ovserve.cli.pull import TASKS
from ovserve.engine.client.spare import Spare
from ovserve.engine.client.spawn import Child
from ovserve.engine.model.files import cloud_fault
from ovserve.errors import InvalidArgument, LoadError, described
from ovserve.pull.packaged import DEFAULT_MODEL
from ovserve.server.environment import from_environment, parse, unknown_variables
from ovserve.server.settings import GROUPS, OPTIONS, REFUSED, WITHOUT_EFFECT, Settings
from ovserve.server.settings import problem as problem_of
from ovserve.server.source import Served, resolve
from ovserve.serving.config.file import ConfigFile, replace_file
from ovserve.serving.config.models import entry_of, looks_plain
from ovserve.serving.config.schema import FILE
from ovserve.serving.settings import GRAPH_FILE

log = logging.getLogger(__name__)

CONFIG_FLAGS = {
    "list_models": "list the graphs and models in --model_repository_path, and end",
    "add_to_config": "add --model_name to --config_path, and end",
    "remove_from_config": "remove --model_name from --config_path, and end",
}
LISTS = ("model_config_list", "mediapipe_config_list")


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Edit a configuration, as OVMS does")
    for name, text in CONFIG_FLAGS.items():
        group.add_argument(f"--{name}", action="store_true", help=text)
    group.add_argument(
        "--group_name",
        default="",
        help="with --add_to_config: group of the entry, loaded and unloaded as one; permanent: never",
    )


def edits_config(arguments: argparse.Namespace) -> bool:
    return any(getattr(arguments, name) for name in CONFIG_FLAGS)


def edit_config(arguments: argparse.Namespace, settings: Settings) -> None:
    """Do what the flag asks. Raises InvalidArgument, or LoadError for a file that cannot be used."""
    repository, name, path = Path(settings.model_repository_path), settings.model_name, settings.model_path
    options = graph_options(arguments) | plain_options(arguments)
    flags = [f"--{flag}" for flag in CONFIG_FLAGS if getattr(arguments, flag)]
    if len(flags) > 1:
        raise InvalidArgument(f"{' and '.join(flags)}: give only one of them")
    if arguments.source:
        raise InvalidArgument(f"{flags[0]}: has no SOURCE, got {arguments.source!r}; name --config_path")
    names = [flag for flag in ("model_path", "model_name") if hasattr(arguments, flag)] + [*options]
    takes = names if arguments.add_to_config else ["model_name"] if arguments.remove_from_config else []
    if wrong := ["task"] if arguments.task else [flag for flag in names if flag not in takes]:
        raise InvalidArgument(f"--{wrong[0]}: has no effect with {flags[0]}")
    if arguments.list_models:
        _list(repository)
        return
    if not name:
        raise InvalidArgument(f"{flags[0]}: needs --model_name")
    file = Path(settings.config_path or repository / "config.json")
    if file.suffix != ".json":
        raise InvalidArgument(f"{flags[0]}: only a .json file can be edited, got {file}")
    if arguments.add_to_config:
        beside = file.parent / path  # where OVMS looks
        there = repository / name if not path else beside if beside.exists() else Path(path)
        _add(file, name, there, options, arguments.group_name)
    else:
        _remove(file, name)


def _list(repository: Path) -> None:
    """Print the names of graphs and plain models: folders, or OWNER/NAME."""
    if not repository.is_dir():
        raise LoadError(f"--model_repository_path: {repository} is not a directory")
    plain = {path.name for path in repository.iterdir() if path.is_dir() and looks_plain(path)}
    for name in sorted({*names_in(repository), *plain}):
        print(name)  # noqa: T201


def _add(file: Path, name: str, directory: Path, options: Mapping[str, Any], group: str) -> None:
    if fault := cloud_fault(directory):
        raise InvalidArgument(f"--model_path: {fault}")
    plain = directory.exists() and looks_plain(directory)
    if not plain and not (directory / GRAPH_FILE).is_file():
        raise LoadError(f"{directory} has no {GRAPH_FILE} and no model; `ovserve pull` fetches one")
    if options and not plain:
        wrong, where = ", ".join(f"--{option}" for option in options), directory / GRAPH_FILE
        raise InvalidArgument(f"{wrong}: not written to {file}; write it into {where}")
    config = _read(file) if file.exists() else {}
    if name in _names(config):
        raise InvalidArgument(f"--model_name: {name!r} is in {file} already")
    base = os.path.abspath(directory)
    root = os.path.abspath(file.parent)
    inside = os.path.relpath(base, root) if Path(base).is_relative_to(root) else base
    entry: dict[str, Any] = {"name": name, "base_path": inside, **entry_of(options)}
    entry |= {"group_name": group} if group else {}
    config.setdefault(LISTS[0], []).append({"config": entry})
    _write(file, config)
    print(f"{file}: {name} is added")  # noqa: T201


def _remove(file: Path, name: str) -> None:
    config = _read(file)
    if name not in _names(config):
        listed = ", ".join(_names(config)) or "nothing"
        raise InvalidArgument(f"--model_name: {name!r} is not in {file}, which lists {listed}")
    for key in LISTS:
        if key in config:
            config[key] = [entry for entry in config[key] if _name(entry) != name]
    _write(file, config)
    print(f"{file}: {name} is removed")  # noqa: T201


def _read(file: Path) -> dict[str, Any]:
    ConfigFile(file).value()  # raises with each fault and its line
    config: dict[str, Any] = json.loads(file.read_bytes())
    return config


def _names(config: dict[str, Any]) -> list[str]:
    return [_name(entry) for key in LISTS for entry in config.get(key, [])]


def _name(entry: dict[str, Any]) -> str:
    return str(entry.get("config", entry)["name"])


def _write(file: Path, config: dict[str, Any]) -> None:
    assert set(config) <= set(FILE.keys), "read as valid"
    replace_file(file, f"{json.dumps(config, indent=4, ensure_ascii=False)}\n".encode())


_NAMES = {o.name for o in OPTIONS}


def add_to(commands: Commands) -> None:
    serve = commands.add_parser(
        "serve",
        help="serve a graph over HTTP",
        usage="ovserve serve [SOURCE] [--OPTION VALUE]...",
        description="Serves SOURCE: a short name or an id on the hub, which are pulled if needed, a .gguf "
        "file, a directory with a model, a graph or graphs, a graph.pbtxt, or a configuration file; by "
        f"default the model {DEFAULT_MODEL}. Every option is an environment variable too, OVSERVE_<NAME>; "
        "the flag wins.",
    )
    serve.add_argument("source", nargs="?", metavar="SOURCE", help="what to serve")
    add_options(serve)
    add_ovms_flags(serve, REFUSED, WITHOUT_EFFECT)
    add_graph_options(serve, "Options of the graph, for a model without one (docs/cli.md)")
    add_plain_options(serve)
    serve.add_argument(
        "--task", choices=TASKS, help="what the graph does (default: what the model's files say)"
    )
    add_config_flags(serve)
    serve.set_defaults(run=_run)


def add_options(serve: argparse.ArgumentParser, without: Collection[str] = ()) -> None:
    """Add the flags of Settings, except those named in `without`."""
    visible = [o for o in OPTIONS if o.metadata["flag"] and o.name not in without]
    present = {o.metadata["group"] for o in visible}
    groups = {name: serve.add_argument_group(name) for name in GROUPS if name in present}
    for o in visible:
        note = "" if o.default == "" else f" (default: {o.default})"
        # No default here: a flag that is not given leaves the value to the environment.
        extra: dict[str, Any] = {"type": reader(functools.partial(parse, o)), "default": argparse.SUPPRESS}
        extra["metavar"] = "|".join(o.metadata["choices"]) or type(o.default).__name__.upper()
        if isinstance(o.default, bool):
            extra |= {"nargs": "?", "const": True}
        help_ = f"{o.metadata['help']}{note}".replace("%", "%%")
        flags = [f"--{name}" for name in (o.name, *o.metadata["aliases"])]
        groups[o.metadata["group"]].add_argument(*flags, help=help_, **extra)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.source == "":  # a variable of a script that is not set
        raise InvalidArgument("SOURCE is empty; leave it out for the default model")
    values = {"source_model": arguments.source} if arguments.source else {}
    if values and hasattr(arguments, "source_model"):
        print("ovserve serve: SOURCE and --source_model are the same; give one", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    values |= {name: value for name, value in vars(arguments).items() if name in _NAMES}
    notices = arguments.notices + unknown_variables(os.environ)
    try:
        settings = Settings(**from_environment(os.environ) | values)
        problem = None if edits_config(arguments) else problem_of(settings)
    except InvalidArgument as exc:
        problem = str(exc)
    if arguments.group_name and not arguments.add_to_config:
        problem = problem or "--group_name: needs --add_to_config; a graph of the command line is a group"
    if problem:
        print(f"ovserve serve: {problem}", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    if edits_config(arguments):
        edit_config(arguments, settings)
        return 0
    options = graph_options(arguments) | plain_options(arguments)
    served = resolve(settings, options, Shown(sys.stderr), arguments.task or "")
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
        from ovserve.server.environment import listening
        from ovserve.server.first_spec import first_spec
        from ovserve.server.settings import cache_path

        with listening(settings) as bound:
            if (spec := first_spec(served, cache_path(settings))) is not None:
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
