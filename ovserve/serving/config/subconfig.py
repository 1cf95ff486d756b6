"""The servables of a configuration, with the plain models that the subconfigs of its graphs list.

A subconfig stands next to a graph and lists the plain models that its nodes run. They are served as others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ovserve.errors import LoadError
from ovserve.serving.config.models import model_specs
from ovserve.serving.config.schema import SUBCONFIG, Object, Value, faults, parse, uses
from ovserve.serving.spec import ServableSpec

SUBCONFIG_FILE = "subconfig.json"


@dataclass(frozen=True)
class RepositoryContent:
    """The servables of a repository; names are unique. `warnings` name entries without effect."""

    specs: tuple[ServableSpec, ...]
    warnings: tuple[str, ...] = ()


def graph_spec(name: str, directory: Path, origin: str) -> ServableSpec:
    """Return the specification of a graph in a directory, with its subconfig if it has one."""
    spec = ServableSpec.of_directory(name, directory, origin=origin)
    file = spec.base / SUBCONFIG_FILE
    return replace(spec, subconfig=file) if file.is_file() else spec


def with_models(entries: Iterable[list[ServableSpec]], warnings: list[str]) -> RepositoryContent:
    """Return the servables of all entries, and the plain models that subconfigs of graphs list.

    Of two entries with one name the first counts, and one of the main file before one of a subconfig.
    """
    specs: dict[str, ServableSpec] = {}
    names: set[str] = set()

    def add(versions: list[ServableSpec]) -> None:
        name = versions[0].name if versions else ""
        if name in names:
            warnings.append(f"{versions[0].origin}: {name!r} is already defined; the first counts")
            return
        names.update(spec.name for spec in versions)
        warnings.extend(dict.fromkeys(warning for spec in versions for warning in spec.warnings))
        specs.update((spec.key, spec) for spec in versions)

    for versions in entries:
        add(versions)
    for graph in [spec for spec in specs.values() if spec.subconfig is not None]:
        try:
            for versions in subconfig_models(graph.subconfig or Path()):
                add(versions)
        except LoadError as error:
            warnings.append(f"the models of {graph.name} are not loaded: {error}")
    return RepositoryContent(tuple(specs.values()), tuple(warnings))


def subconfig_models(path: Path) -> list[list[ServableSpec]]:
    """Return the versions of each plain model that a subconfig lists. Raises LoadError if it is invalid."""
    if not path.is_file():
        return []
    value = _subconfig(path)
    models = []
    for item in items(value, "model_config_list"):
        entry = item.data["config"]
        fields = entry.plain
        base = path.parent / fields.get("base_path", fields["name"])
        models.append(model_specs(fields["name"], base, fields, f"{path}:{entry.line}"))
    return models


def _subconfig(path: Path) -> Value:
    try:
        return checked(path.read_bytes(), path, SUBCONFIG)
    except OSError as error:
        raise LoadError(f"cannot be read: {error.strerror}", file=str(path)) from error


def check_subconfig(path: Path) -> list[str]:
    """Return warnings about keys without effect. Raises LoadError if the file is invalid."""
    used = uses(_subconfig(path), SUBCONFIG, lambda entry: True)
    return [f"{path}:{use.line}: {use.path} has no effect: {use.effect}" for use in used if use.effect]


def checked(text: bytes, path: Path, schema: Object) -> Value:
    """Parse and check. Raises LoadError with all faults, one per line."""
    value = parse(text, str(path))
    problems = faults(value, schema)
    if problems:
        more = "".join(f"\n{path}:{fault.line}: {fault.text}" for fault in problems[1:])
        raise LoadError(problems[0].text + more, file=str(path), line=problems[0].line)
    return value


def items(value: Value, key: str) -> list[Value]:
    return list(value.data[key].data) if key in value.data else []
