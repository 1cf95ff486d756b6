"""graph.pbtxt as pull writes it: checked first, never over a changed one, and read again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ovserve.calculators.shipped import shipped_registry
from ovserve.errors import LoadError
from ovserve.graph.config import load_graph
from ovserve.protos.llm_pb2 import LLMCalculatorOptions
from ovserve.pull.graph_text import OPTIONS, OptionValue, graph_text
from ovserve.pull.record import Record, digest, read
from ovserve.scratch import scratch_directory
from ovserve.serving.loader import Checked, check
from ovserve.serving.settings import GRAPH_FILE, ServableSpec


def is_changed(directory: Path, record: Record) -> bool:
    """Return whether there is a graph that differs from the one that pull wrote."""
    file = directory / GRAPH_FILE
    return file.is_file() and digest(file) != record.graph


def check_options(text: str) -> None:
    """Check that a graph over some model would load, before anything is fetched. Raises LoadError."""
    with scratch_directory("ovserve-pull-") as scratch:
        (scratch / GRAPH_FILE).write_text(text)
        try:
            check_file(scratch, GRAPH_FILE).graph.close()
        except LoadError as error:
            raise LoadError(f"{error.field}: {error.reason}" if error.field else error.reason) from error


def check_file(directory: Path, name: str) -> Checked:
    base = directory.absolute()
    return check(ServableSpec(base.name, base, base / name), shipped_registry())


def write(directory: Path, text: str) -> str:
    """Write it; return its sha256. Raises LoadError for a graph that would not be served, and changes nothing
    then."""
    temporary = directory / f".{GRAPH_FILE}"
    temporary.write_text(text)
    try:
        check_file(directory, temporary.name).graph.close()
        os.replace(temporary, directory / GRAPH_FILE)
    finally:
        temporary.unlink(missing_ok=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Written(msgspec.Struct, frozen=True):
    model: Path
    draft: str  # path of a draft model, or empty
    options: Mapping[str, OptionValue]  # by name, those of the command line included


def pulled_model(file: Path, overrides: Mapping[str, OptionValue]) -> Written | None:
    """Return the language model of a graph that pull wrote, with `overrides` in place of its own.

    The engine is left out if it cannot be used with them. None: pull did not write the graph, or it was
    changed since, or it has no language model.
    """
    directory, pulled = file.parent, read(file.parent)
    if not pulled.graph or is_changed(directory, pulled):
        return None
    if (fields := _fields(file)) is None:
        return None
    model = Path(os.path.abspath(directory / fields.models_path))
    draft = os.path.abspath(directory / fields.draft_models_path) if fields.draft_models_path else ""
    options = {**_options(fields, overrides), **overrides}
    if "engine" in options and "engine" not in overrides:
        try:
            check_options(graph_text(options, "./", draft))
        except LoadError:
            del options["engine"]
    return Written(model, draft, options)


def _fields(file: Path) -> LLMCalculatorOptions | None:
    config = load_graph(file, file.parent)
    for position in range(len(config.message.node)):
        if (message := config.options(position, LLMCalculatorOptions)) is not None:
            return message
    return None


def _options(fields: LLMCalculatorOptions, overrides: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
    names = {option.field or option.name: option.name for option in OPTIONS if not option.property}
    options: dict[str, OptionValue] = {}
    for field, value in fields.ListFields():
        if (name := names.get(field.name)) is not None:
            enum = field.enum_type
            options[name] = value if enum is None else enum.values_by_number[value].name
    if "plugin_config" in options:
        options["plugin_config"] = _without(str(options["plugin_config"]), overrides)
    return options


def _without(plugin_config: str, overrides: Mapping[str, OptionValue]) -> str:
    """Leave out the properties that have a flag of their own, where that is given."""
    flags = {option.property: option.name for option in OPTIONS if option.property}
    properties = json.loads(plugin_config or "{}")
    return json.dumps({key: value for key, value in properties.items() if flags.get(key) not in overrides})
