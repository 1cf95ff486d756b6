"""--config_path: OVMS's config.json, or the same content as YAML, to specifications.

Paths: `base_path` is absolute or relative to the directory of the file, and by default the folder there with
the entry's name. `graph_path` and `subconfig` are absolute or relative to `base_path`, by default graph.pbtxt
and, if there is one, subconfig.json. An entry of `model_config_list` may have its graph in `base_path`/1, as
in KServe's ModelMesh, with config.json as subconfig; else it is a plain model if one is there, or if it has
options of one (`models.py`). Of two entries with one name the first counts.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ovserve.engine.model.files import cloud_fault, refusal
from ovserve.errors import LoadError
from ovserve.kinds.tensors.spec import SUFFIXES
from ovserve.serving.config.models import FLAGS, looks_plain, model_specs, nothing_served, option_fault
from ovserve.serving.config.schema import FILE, SUBCONFIG, Object, Value, faults, parse, uses
from ovserve.serving.settings import GRAPH_FILE, ServableSpec

MESH_FOLDER, MESH_SUBCONFIG = "1", "config.json"  # the other one with this name is of the model on the hub
MODEL_KEYS = frozenset(FLAGS)
LOST = "lost+found"  # at the root of a volume, for root alone
TRIES, TRY_SECONDS = 3, 0.01  # a writer may not have finished


def replace_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file in one step. One that is there keeps its permissions, a new one gets `mode`.

    Raises OSError that names `path`.
    """
    try:
        _replace(path.resolve(), data, mode)  # behind a link, the file itself is replaced
    except OSError as error:  # of a temporary file, or without a name where the disk is full
        raise OSError(error.errno, error.strerror, str(path)) from error


def _replace(path: Path, data: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        mode = path.stat().st_mode & 0o777
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


class Monitoring(msgspec.Struct, frozen=True):
    """The monitoring section as written; None for absent fields."""

    enabled: bool | None = None
    metrics: tuple[str, ...] | None = None


class ConfigFile:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._parsed: tuple[bytes, Value] | None = None

    def read(self) -> RepositoryContent:
        """Read the file. Raises LoadError that names each fault with its line."""
        value = self.value()
        warnings = [
            f"{self.path}:{use.line}: {use.path} has no effect: {use.effect}"
            for use in uses(value, FILE, self.is_plain)
            if use.effect
        ]
        return with_models(self._entries(value), warnings)

    def digest(self) -> str:
        """Return the digest of the content, and of the files that its paths lead to."""
        try:
            text = self.path.read_bytes()
        except OSError as error:
            return f"unreadable: {error.strerror}"
        try:
            specs = list(with_models(self._entries(self.value(text)), []).specs)
        except LoadError:
            specs = []
        return sha256(text + repr([(s, s.subconfig) for s in specs]).encode()).hexdigest()

    def monitoring(self) -> Monitoring:
        metrics = self.value().plain.get("monitoring", {}).get("metrics", {})
        listed = metrics.get("metrics_list")
        return Monitoring(metrics.get("enable"), None if listed is None else tuple(listed))

    def option_faults(self) -> dict[str, str]:
        """Return why options of plain models are refused, by their path in the file."""
        entries = [item.data["config"] for item in items(self.value(), "model_config_list")]
        return {
            entry.data[key].path: fault
            for entry in entries
            if self.is_plain(entry)
            for key in entry.data
            if (fault := option_fault(key, entry.plain[key]))
        }

    # -- parts

    def value(self, text: bytes | None = None) -> Value:
        """Return the checked content, that of `text` in place of the file's. Raises as `read`."""
        for last in (*[False] * (TRIES - 1), True):
            try:
                return self._checked(_content(self.path) if text is None else text)
            except LoadError:
                if last or text is not None:
                    raise
                time.sleep(TRY_SECONDS)
        raise AssertionError("unreachable")

    def _checked(self, text: bytes) -> Value:
        if self._parsed is None or self._parsed[0] != text:
            self._parsed = text, checked(text, self.path, FILE)
        return self._parsed[1]

    def is_plain(self, entry: Value) -> bool:
        """Return whether an entry of `model_config_list` is a plain model."""
        return is_plain(self._spec(entry, mesh=True), entry)

    def _entries(self, value: Value) -> Iterator[list[ServableSpec]]:
        """Yield the specifications of each entry. Its own values win over those of the file."""
        idle = value.plain.get("idle_unload_timeout_seconds")
        for specs in self._specs(value):
            yield [replace(s, idle_seconds=idle) if s.idle_seconds is None else s for s in specs]

    def _specs(self, value: Value) -> Iterator[list[ServableSpec]]:
        for item in items(value, "model_config_list"):
            yield self._of_entry(item.data["config"])
        for item in items(value, "mediapipe_config_list"):
            yield [self._spec(item, mesh=False)]
        for item in items(value, "pipeline_config_list"):
            name = item.data.get("name") if isinstance(item.data, dict) else None
            if name is not None and isinstance(name.data, str) and name.data:
                fault = "it is a DAG pipeline, and this server serves graphs only"
                base = self.path.parent / name.data
                yield [ServableSpec(name.data, base, base / GRAPH_FILE, None, self._at(item), fault)]

    def _of_entry(self, entry: Value) -> list[ServableSpec]:
        graph = self._spec(entry, mesh=True)
        if not is_plain(graph, entry):
            return [graph]
        specs = model_specs(graph.name, graph.base, entry.plain, graph.origin)
        group, idle, warmup = graph.group, graph.idle_seconds, graph.warmup
        return [replace(spec, group=group, idle_seconds=idle, warmup=warmup) for spec in specs]

    def _spec(self, entry: Value, *, mesh: bool) -> ServableSpec:
        fields: dict[str, Any] = {key: value.data for key, value in entry.data.items()}
        base = self.path.parent / fields.get("base_path", fields["name"])
        graph = base / fields.get("graph_path", GRAPH_FILE)
        subconfig = base / fields.get("subconfig", SUBCONFIG_FILE)
        fault = cloud_fault(fields.get("base_path", "")) or cloud_fault(fields.get("graph_path", ""))
        try:
            if mesh and not graph.is_file() and (base / MESH_FOLDER / GRAPH_FILE).is_file():
                base = base / MESH_FOLDER
                graph, subconfig = base / GRAPH_FILE, base / SUBCONFIG_FILE
                if not subconfig.is_file() and _lists_models(base / MESH_SUBCONFIG):
                    subconfig = base / MESH_SUBCONFIG
            has_subconfig = "subconfig" in fields or subconfig.is_file()
        except OSError as error:
            fault, has_subconfig = fault or refusal(error), False
        return ServableSpec(
            fields["name"],
            base,
            graph,
            subconfig if has_subconfig else None,
            self._at(entry),
            fault,
            group=fields.get("group_name", ""),
            idle_seconds=fields.get("idle_unload_timeout_seconds"),
            warmup=base / fields["warmup_file"] if "warmup_file" in fields else None,
        )

    def _at(self, value: Value) -> str:
        return f"{self.path}:{value.line}"


def is_plain(spec: ServableSpec, entry: Value) -> bool:
    """Return whether an entry is a plain model: it names no graph, none is there, and a model may be."""
    if os.path.isfile(spec.graph) or {"graph_path", "subconfig"} & entry.data.keys():
        return False
    return looks_plain(spec.base) or bool(MODEL_KEYS & entry.data.keys()) or spec.base.suffix in SUFFIXES


def _lists_models(path: Path) -> bool:
    try:
        return b'"model_config_list"' in path.read_bytes()
    except OSError:
        return False


# The servables of a configuration, with the plain models that the subconfigs of its graphs list.
#
# A subconfig stands next to a graph and lists the plain models that its nodes run. They are served as others.


SUBCONFIG_FILE = "subconfig.json"


class RepositoryContent(msgspec.Struct, frozen=True):
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
    value = checked(_content(path), path, SUBCONFIG)
    models = []
    for item in items(value, "model_config_list"):
        entry = item.data["config"]
        fields = entry.plain
        base = path.parent / fields.get("base_path", fields["name"])
        models.append(model_specs(fields["name"], base, fields, f"{path}:{entry.line}"))
    return models


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LoadError(f"cannot be read: {error.strerror}", file=str(path)) from error


def check_subconfig(path: Path) -> list[str]:
    """Return warnings about keys without effect. Raises LoadError if the file is invalid."""
    used = uses(checked(_content(path), path, SUBCONFIG), SUBCONFIG, lambda entry: True)
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


# The sources of the desired set of servables. Reading one blocks, so it runs in a thread.
#
# A repository is one of three: a single graph of the command line, a directory of graphs, a configuration
# file.


class Repository(Protocol):
    def read(self) -> RepositoryContent:
        """Return the servables. Raises LoadError when the whole is wrong; a wrong entry is a spec with a
        fault."""

    def digest(self) -> str:
        """Return a digest that changes when `read` may find another set. It is cheap, because every poll
        calls it."""


@dataclass(frozen=True)
class SingleGraph:
    """The one graph of a command line, in a directory or made in memory; or a plain model, with the `entry`
    that it would have in a configuration."""

    spec: ServableSpec
    entry: Mapping[str, Any] = field(default_factory=dict)

    def read(self) -> RepositoryContent:
        base = self.spec.base.absolute()
        if self.spec.text:
            return RepositoryContent((self.spec,))
        if looks_plain(base):
            return with_models([model_specs(self.spec.name, base, self.entry, "--model_path")], [])
        return with_models([[graph_spec(self.spec.name, base, self.spec.origin)]], [])

    def digest(self) -> str:
        return repr([(spec.key, spec.base, spec.fault) for spec in self.read().specs])


class GraphsDirectory(msgspec.Struct, frozen=True):
    """The graphs and plain models of --graphs_dir: one folder per servable, with its name.

    A folder that cannot be read is a servable with a fault, but for the one of a file system's own.
    """

    path: Path

    def read(self) -> RepositoryContent:
        root = self.path.absolute()
        try:
            folders = sorted(f for f in root.iterdir() if f.is_dir() and f.name[0] != "." and f.name != LOST)
        except OSError as error:
            raise LoadError(f"cannot be read: {error.strerror}", file=str(root)) from error
        entries = {folder: self._of_folder(folder) for folder in folders}
        others = [f"not served: {nothing_served(folder)}" for folder in folders if not entries[folder]]
        return with_models(entries.values(), others)

    def _of_folder(self, folder: Path) -> list[ServableSpec]:
        try:
            if (folder / GRAPH_FILE).is_file():
                return [graph_spec(folder.name, folder, str(folder))]
            return model_specs(folder.name, folder, {}, str(folder)) if looks_plain(folder) else []
        except OSError as error:
            fault = refusal(error)
            return [replace(ServableSpec.of_directory(folder.name, folder, origin=str(folder)), fault=fault)]

    def digest(self) -> str:
        try:
            return repr([(spec.key, spec.fault) for spec in self.read().specs])
        except LoadError as error:
            return str(error)
