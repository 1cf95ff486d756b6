"""`ovserve check`: check what would be served. For operators before a reload, and for CI before a merge."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ovserve.cli.parser import EXIT_FAILED, Commands, size, table
from ovserve.errors import LoadError
from ovserve.server.settings import Settings

if TYPE_CHECKING:  # imported where needed: --help does not need the server
    from ovserve.engine.host.memory import Memory
    from ovserve.serving.check import Report


LOAD_SECONDS = Settings.load_timeout


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "check",
        help="check graphs and configurations without loading models",
        description="Checks graphs, model files, chat templates, parsers, devices and plugin_config as a "
        "start would, without loading weights, and compares the memory they need with the available memory. "
        "With --load it loads each model too. Exit code 0: all would be served.",
        allow_abbrev=False,
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
        found = uses(file.value(), FILE, file.is_plain)
        rows = [[str(u.line), u.path, f"no effect: {u.effect}" if u.effect else "supported"] for u in found]
        _say(table(["line", "option", "here"], rows) + "\n")


async def _check(arguments: argparse.Namespace) -> bool:
    from ovserve.calculators.shipped import MODULES
    from ovserve.engine.host.memory import memory
    from ovserve.graph import Registry
    from ovserve.sandbox.templates.pool import TemplatePool
    from ovserve.serving.check import find, load, report
    from ovserve.serving.check_engine import Probe
    from ovserve.serving.config.repository import Found

    registry = Registry(MODULES)
    registry.add_entry_points()
    templates, probe = TemplatePool(), Probe()
    errors = warnings = 0
    needed: dict[object, int] = {}
    try:
        for path in arguments.path:
            try:
                found = find(path)
            except LoadError as error:
                found = Found((), ())
                errors += 1
                _say(f"error: {error}")
            for text in found.warnings:
                _say(f"warning: {text}")
            warnings += len(found.warnings)
            plain = [spec.name for spec in found.specs if spec.plain]
            for spec in found.specs:
                one = await report(spec, registry, templates, probe, plain)
                seconds = (
                    await load(one, registry, LOAD_SECONDS) if arguments.load and not one.errors else 0.0
                )
                _say(_told(one, seconds))
                errors, warnings = errors + len(one.errors), warnings + len(one.warnings)
                needed |= {model.spec: model.memory for model in one.models}
    finally:
        await templates.stop()
    if needed:
        warnings += _compare(sum(needed.values()), memory())
    if probe.untried:
        _say(f"not tried: devices and plugin_config: {probe.untried}")
    if needed and not arguments.load:
        _say("not tried: loading the models and the load() of nodes, which `ovserve check --load` does")
    _say(f"{errors} errors, {warnings} warnings")
    return not errors and not (arguments.strict and warnings)


def _told(one: Report, loaded: float) -> str:
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
        engine = ", by the paged engine" if model.spec.decoding == "paged" else ""
        lines += [
            f"  model {model.spec.model_path}",
            f"    {model.architecture}, context {model.context or 'unknown'}, on {model.spec.device}{engine}",
            f"    weights {size(model.size.weights)}, {cache}",
            f"    chat template: {model.template}; {model.parsers}",
        ]
    lines += [f"  {note}" for note in one.notes]
    if loaded and not one.errors:
        lines.append(f"  loaded and stopped again in {loaded:.1f} s")
    lines += [f"  error: {text}" for text in one.errors] + [f"  warning: {text}" for text in one.warnings]
    return "\n".join([*lines, ""])


def _compare(needed: int, there: Memory) -> int:
    """Compare the memory; return the number of warnings."""
    if not there.available:
        _say(f"memory: {size(needed)} needed at least; the available memory is unknown on this machine")
        return 0
    fits = needed <= there.available
    _say(
        f"{'' if fits else 'warning: '}memory: {size(needed)} needed at least for all models (weights and "
        f"one full context each), {size(there.available)} free on this {there.limit}"
    )
    return 0 if fits else 1


def _say(text: str) -> None:
    print(text, file=sys.stdout)  # noqa: T201
