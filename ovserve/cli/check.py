"""`ovserve check`: check what would be served. For operators before a reload, and for CI before a merge."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ovserve.cli.parser import EXIT_FAILED, Commands, size, table
from ovserve.errors import InvalidArgument, LoadError, OvserveError
from ovserve.server.settings import Settings

if TYPE_CHECKING:  # imported where needed: --help does not need the server
    from ovserve.engine.host.memory import Memory
    from ovserve.serving.check import Model, Report
    from ovserve.serving.config.schema import Use


LOAD_SECONDS = Settings.load_timeout


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "check",
        help="check graphs and configurations without loading models",
        description="Checks graphs, model files, chat templates, parsers, devices and plugin_config as a "
        "start would, without loading weights, and compares the memory they need with the available memory. "
        "Plain models are loaded; with --load, all others too. Exit code 0: all would be served.",
    )
    parser.add_argument(
        "path",
        nargs="+",
        type=Path,
        help="a graph.pbtxt or its directory, a directory of graphs, or a configuration file",
    )
    parser.add_argument(
        "--ovms",
        action="store_true",
        help="list every option of OVMS in a configuration and its effect here",
    )
    parser.add_argument(
        "--load", action="store_true", help="also start the engine of each graph, one at a time, and stop it"
    )
    parser.add_argument("--strict", action="store_true", help="treat warnings as errors")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.ovms:
        for path in arguments.path:
            _ovms(path)
    return 0 if asyncio.run(_check(arguments)) else EXIT_FAILED


def _ovms(path: Path) -> None:
    """List the options of a file; an invalid one is reported by the check that follows."""
    from ovserve.serving.config.file import ConfigFile
    from ovserve.serving.config.schema import FILE, uses

    with suppress(LoadError):
        file = ConfigFile(path)
        used_options = uses(file.value(), FILE, file.is_plain)
        faults = file.option_faults()
        rows = [[str(u.line), u.path, _effect(u, faults.get(u.path, ""))] for u in used_options]
        _say(table(["line", "option", "here"], rows) + "\n")


def _effect(use: Use, fault: str) -> str:
    if fault:
        return f"refused: {fault}"
    return f"no effect: {use.effect}" if use.effect else "supported"


def _check_metrics(path: Path) -> None:
    """Raises InvalidArgument for a metric of the file that does not exist, or LoadError."""
    from ovserve.services.monitoring.families import choose
    from ovserve.serving.config.file import ConfigFile

    try:
        choose(ConfigFile(path).monitoring().metrics)
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: monitoring.metrics.metrics_list: {error}") from error


async def _check(arguments: argparse.Namespace) -> bool:
    from ovserve.calculators.shipped import shipped_registry
    from ovserve.engine.host.memory import memory
    from ovserve.sandbox.templates import Templates
    from ovserve.server.build import convert_when_loaded
    from ovserve.server.source import model_without_graph
    from ovserve.serving.check import CONFIG_SUFFIXES, Probe, Trial, find, report
    from ovserve.serving.config.file import RepositoryContent

    registry, templates, probe = shipped_registry(), Templates(), Probe()
    repository = Path(Settings.model_repository_path)
    convert = partial(convert_when_loaded, repository=repository, say=_say)
    trial: Trial | None = None
    errors = warnings = 0
    needed: dict[object, int] = {}
    try:
        for path in arguments.path:
            try:
                model = model_without_graph(path)
                graphs = RepositoryContent((model,), ()) if model is not None else find(path)
                if path.is_file() and path.suffix in CONFIG_SUFFIXES:
                    _check_metrics(path)
            except OvserveError as error:
                graphs = RepositoryContent((), ())
                errors += 1
                _say(f"error: {error}")
            for text in graphs.warnings:
                _say(f"warning: {text}")
            warnings += len(graphs.warnings)
            plain = [spec.name for spec in graphs.specs if spec.plain]
            if plain or arguments.load:
                trial = trial or Trial(registry, LOAD_SECONDS, convert)
            models = trial.models if trial is not None else None
            for spec in sorted(graphs.specs, key=lambda spec: not spec.plain):  # graphs use plain models
                one = await report(spec, registry, templates, probe, plain, models)
                is_loaded = trial is not None and (spec.plain or arguments.load) and not one.errors
                seconds = await trial.load(one) if trial is not None and is_loaded else 0.0
                _say(_report_text(one, seconds))
                errors, warnings = errors + len(one.errors), warnings + len(one.warnings)
                needed |= {model.spec: model.memory for model in one.models}
    finally:
        await templates.stop()
        if trial is not None:
            await trial.stop()
    if needed:
        warnings += _compare(sum(needed.values()), memory())
    if probe.untried:
        _say(f"not tried: devices and plugin_config: {probe.untried}")
    if needed and not arguments.load:
        _say("not tried: loading the models and the load() of nodes, which `ovserve check --load` does")
    _say(f"{errors} errors, {warnings} warnings")
    return not errors and not (arguments.strict and warnings)


def _report_text(one: Report, loaded: float) -> str:
    """Return the report as text. `loaded`: the seconds that loading took, if it was tried."""
    lines = [
        f"{one.spec.label}: {'NOT SERVED' if one.errors else 'would be served'}",
        f"  model {one.spec.base}" if one.spec.plain else f"  graph {one.spec.graph}",
    ]
    for model in one.models:
        cache = (
            f"cache {configured} GB as configured"
            if (configured := getattr(model.spec, "cache_size", 0))
            else f"{size(model.full_context)} of cache for one full context"
            if model.full_context
            else "size of the cache unknown"
        )
        lines += [
            f"  model {model.spec.model_path}",
            f"    {model.architecture}, context {model.context or 'unknown'}, on {model.spec.device}",
            f"    engine {model.engine}",
            f"    weights {size(model.size.weights)}, {cache}",
            *(f"    {name}: {text}" for name, text in needs(model)),
            f"    chat template: {model.template}; {model.parsers}",
        ]
    lines += [f"  {note}" for note in one.notes]
    if loaded and not one.errors:
        lines.append(f"  loaded and stopped again in {loaded:.1f} s")
    errors = {str(error): error for error in one.located}
    for text in one.errors:
        lines += _error_lines(errors[text]) if text in errors else [f"  error: {text}"]
    lines += [f"  warning: {text}" for text in one.warnings]
    return "\n".join([*lines, ""])


def _error_lines(error: LoadError) -> list[str]:
    """Return an error as compilers print one, for editors to follow: FILE:LINE:COLUMN, the line, a caret."""
    if not error.file or not error.line:
        return [f"  error: {error}"]
    place = ":".join(str(part) for part in (error.file, error.line, error.column) if part)
    text = re.sub(r" \(at \d+:\d+\)$", "", str(error).removeprefix(f"{error.file}:{error.line}: "))
    lines = [f"{place}: error: {text}"]
    with suppress(OSError, UnicodeDecodeError, IndexError):
        source = Path(error.file).read_text(encoding="utf-8-sig").splitlines()[error.line - 1][:200]
        lines.append(f"    {source}")
        if error.column:
            blank = "".join(c if c == "\t" else " " for c in source[: error.column - 1])
            lines.append(f"    {blank}^")
    return lines


def needs(model: Model) -> list[tuple[str, str]]:
    """Return what a model will take here: memory, KV cache, disk."""
    load, cache = model.load, model.size.cache_per_token * 1000
    mapping = f"while it loads, {size(load.mapping)} of mapped files more, which the kernel may drop"
    disk = f"{size(load.disk)}, for what `ovserve serve` converts the file to"
    return [
        ("memory", f"{size(load.resident)} and the KV cache; {mapping}"),
        ("KV cache", f"{size(cache)} per 1,000 tokens" if cache else "unknown"),
        *([("disk", disk)] if load.disk else []),
    ]


def _compare(needed: int, there: Memory) -> int:
    if not there.available:
        _say(f"memory: {size(needed)} needed at least; the available memory is unknown on this machine")
        return 0
    fits = needed <= there.available
    _say(
        f"{'' if fits else 'warning: '}memory: {size(needed)} needed for all models with one full context "
        f"each, {size(there.available)} free on this {there.limit}"
    )
    return 0 if fits else 1


def _say(text: str) -> None:
    print(text, file=sys.stdout)  # noqa: T201
