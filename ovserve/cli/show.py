"""`ovserve show MODEL`: what is known of a model on disk, or of one that a running server has."""

from __future__ import annotations

import argparse
import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ovserve.cli.check import needs
from ovserve.cli.local import DEFAULT, find, repository
from ovserve.cli.parser import EXIT_FAILED, Commands, size
from ovserve.errors import InvalidArgument, NotFound
from ovserve.pull import record
from ovserve.pull.packaged import MODELS, described
from ovserve.server.settings import Settings
from ovserve.server.source import model_without_graph, resolve

if TYPE_CHECKING:
    from ovserve.serving.check import Report
    from ovserve.serving.settings import ServableSpec


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "show",
        help="show what is known of a model",
        description="Shows where a model came from, its size, context, parsers and chat template, and the "
        "graph that serves it.",
    )
    parser.add_argument("model", metavar="MODEL", help="the name of a pulled model, or a path as for serve")
    parser.add_argument("--model_repository_path", default="", metavar="PATH", help=f"(default: {DEFAULT})")
    parser.add_argument("--template", action="store_true", help="print the chat template only")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    path, name = Path(os.path.expanduser(arguments.model)), ""
    if arguments.model in MODELS or not path.exists():
        try:
            name = arguments.model
            path = find(repository(arguments.model_repository_path), name)
        except NotFound:
            if (packaged := MODELS.get(arguments.model)) is None:
                raise
            description = f"{packaged.file}, {described(packaged)}; not pulled"
            print(f"{arguments.model}: {description}")  # noqa: T201
            return 0
    model = model_without_graph(path.absolute())  # looked at, and not converted
    if model is not None:
        specs: tuple[ServableSpec, ...] = (replace(model, name=name or model.name),)
    else:
        served = resolve(Settings(source_model=str(path.absolute()), model_name=name), {}, print)
        specs = served.repository.read().specs
    if len(specs) != 1:
        raise InvalidArgument(
            f"{path} has several graphs: {', '.join(spec.name for spec in specs)}; show one"
        )
    one = asyncio.run(_report(specs[0]))
    if arguments.template:
        print(_template(one), end="")  # noqa: T201
        return 0
    for name, value in _rows(one, path):
        print(f"{name.ljust(14)}{value}")  # noqa: T201
    return EXIT_FAILED if one.errors else 0


async def _report(spec: ServableSpec) -> Report:
    from ovserve.calculators.shipped import shipped_registry
    from ovserve.sandbox.templates import Templates
    from ovserve.serving.check import report

    templates = Templates()
    try:
        return await report(spec, shipped_registry(), templates)
    finally:
        await templates.stop()


def _template(one: Report) -> str:
    from ovserve.engine.model.files import read_model_files

    templates = [read_model_files(model.spec.model_path).chat_template for model in one.models]
    return "".join(f"{text}\n" for text in templates if text)


def _rows(one: Report, path: Path) -> list[tuple[str, str]]:
    origin = record.read(path) if path.is_dir() else record.Record()
    rows = [("name", one.spec.name), ("path", str(path))]
    if origin.source:
        rows += [("pulled from", origin.source), ("identity", origin.identity)]
    rows.append(("graph", "made in memory" if one.spec.text else str(one.spec.graph)))
    for model in one.models:
        rows += [
            ("model", str(model.spec.model_path)),
            ("architecture", model.architecture),
            ("weights", size(model.size.weights)),
            ("context", str(model.context or "unknown")),
            ("full context", f"{size(model.full_context)} of cache" if model.full_context else "unknown"),
            *needs(model),
            ("device", model.spec.device),
            ("engine", str(model.engine)),
            ("chat template", str(model.template)),
            ("parsers", str(model.parsers)),
        ]
    rows += [("error", text) for text in one.errors] + [("warning", text) for text in one.warnings]
    return rows
