"""The `user_config` of a Ray Serve deployment, which is what it serves: packed where it is deployed, unpacked
by every replica.

Texts of graphs and subconfigs travel, and hashes of keys. Models, and the code of graph authors, do not: they
must be at the same path on every node. A graph that was made in memory has no `base_path`, so that no code
next to a pulled model is run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from ovserve.errors import InvalidArgument, LoadError
from ovserve.serving.config.file import ConfigFile, Repository, checked, items, replace_file
from ovserve.serving.config.schema import SUBCONFIG
from ovserve.serving.fingerprint import Fingerprints
from ovserve.serving.loader import model_paths
from ovserve.serving.settings import ServableSpec

CONFIG, KEYS, GRAPHS = "config.json", "keys.toml", "graphs"
PATH_KEYS = ("base_path", "graph_path", "subconfig", "name")
MOST_BYTES = 4 << 20  # Ray keeps a user_config in the state of its controller


class Entry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One graph or plain model. `options` are those that OVMS has for a plain one."""

    name: str
    base_path: str = ""
    graph: str = ""
    subconfig: dict[str, Any] | None = None
    options: dict[str, Any] = {}


class Rollout(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The `user_config`. `keys` is the content of --api_keys_file, which holds hashes only. `content` is a
    digest of models and code, which do not travel: Serve applies a `user_config` only if it has changed."""

    graphs: list[Entry]
    keys: str = ""
    monitoring: dict[str, Any] | None = None
    content: str = ""


def pack(repository: Repository, keys: str = "") -> dict[str, Any]:
    """Return the `user_config` for what a repository holds. Raises LoadError if the repository is invalid,
    and InvalidArgument if it is too large to travel."""
    monitoring, specs = None, repository.read().specs
    if isinstance(repository, ConfigFile):
        entries, monitoring = _of_file(repository), repository.value().plain.get("monitoring")
    else:
        entries = _of_specs(specs)
    rollout = Rollout(list(entries), keys, monitoring, _content(specs))
    if (size := len(msgspec.json.encode(rollout))) > MOST_BYTES:
        raise InvalidArgument(f"graphs, subconfigs and keys have {size} bytes; at most {MOST_BYTES} travel")
    packed: dict[str, Any] = msgspec.to_builtins(rollout)
    return packed


def parse(user_config: object) -> Rollout:
    """Return a checked rollout. Raises LoadError that names the field."""
    try:
        rollout = msgspec.convert(user_config, Rollout)
    except msgspec.ValidationError as error:
        raise LoadError(f"user_config: {error}") from None
    if not rollout.graphs:
        raise LoadError("user_config: graphs: expected at least one entry")
    return rollout


def unpack(rollout: Rollout, directory: Path, own_keys: str = "") -> None:
    """Write the files of a configuration below a directory. `own_keys` are entries to add to the keys.

    Paths depend on names alone: the server compares contents, and reloads what changed.
    """
    models, graphs = [], []
    for entry in rollout.graphs:
        own = directory / GRAPHS / quote(entry.name, safe="")
        if not entry.graph:
            base = {"base_path": entry.base_path} if entry.base_path else {}
            models.append({"config": {"name": entry.name} | base | entry.options})
            continue
        listed = {"name": entry.name, "base_path": entry.base_path or str(own)}
        _write(own / "graph.pbtxt", entry.graph.encode())
        listed["graph_path"] = str(own / "graph.pbtxt")
        if entry.subconfig is not None:
            _write(own / "subconfig.json", msgspec.json.encode(entry.subconfig))
            listed["subconfig"] = str(own / "subconfig.json")
        graphs.append(listed)
    document: dict[str, Any] = {"model_config_list": models, "mediapipe_config_list": graphs}
    if rollout.monitoring is not None:
        document["monitoring"] = rollout.monitoring
    if rollout.keys or own_keys:
        _write(directory / KEYS, f"{rollout.keys}\n{own_keys}".encode())
    _write(directory / CONFIG, msgspec.json.encode(document))


def _of_file(file: ConfigFile) -> Iterator[Entry]:
    """Yield the entries of a configuration file, with the options of plain models."""
    specs = {spec.name: spec for spec in file.read().specs}
    value = file.value()
    listed = [
        (item.data["config"], file.is_plain(item.data["config"]))
        for item in items(value, "model_config_list")
    ]
    listed += [(item, False) for item in items(value, "mediapipe_config_list")]
    names: set[str] = set()
    for item, plain in listed:
        fields: Mapping[str, Any] = item.plain
        name = fields["name"]
        if name in names:
            continue  # of two entries with one name the first counts
        names.add(name)
        if plain:
            base = str(file.path.parent / fields.get("base_path", name))
            yield Entry(name, base, options={k: v for k, v in fields.items() if k not in PATH_KEYS})
        else:
            yield _of_graph(specs[name])


def _of_specs(specs: Iterable[ServableSpec]) -> Iterator[Entry]:
    """Yield an entry per name; models that a subconfig lists travel with it."""
    graphs = [spec for spec in specs if not spec.plain and spec.adapter is None]
    of_subconfigs = {name for spec in graphs if spec.subconfig for name in _names(spec.subconfig)}
    names: set[str] = set()
    for spec in specs:
        if spec.adapter is not None or spec.name in names or (spec.plain and spec.name in of_subconfigs):
            continue
        names.add(spec.name)
        yield Entry(spec.name, str(spec.base)) if spec.plain else _of_graph(spec)


def _of_graph(spec: ServableSpec) -> Entry:
    if spec.fault:
        raise LoadError(f"{spec.origin}: {spec.name}: {spec.fault}")
    if spec.text:
        return Entry(spec.name, graph=spec.text)
    subconfig = None if spec.subconfig is None else _absolute(spec.subconfig)
    return Entry(spec.name, str(spec.base), _text_of(spec.graph), subconfig)


def _absolute(path: Path) -> dict[str, Any]:
    """Return a subconfig with absolute base paths. Raises LoadError if it is invalid."""
    document: dict[str, Any] = checked(_text_of(path).encode(), path, SUBCONFIG).plain
    for item in document.get("model_config_list", []):
        entry = item["config"]
        entry["base_path"] = str(path.parent / entry.get("base_path", entry["name"]))
    return document


def _names(path: Path) -> list[str]:
    return [item["config"]["name"] for item in _absolute(path).get("model_config_list", [])]


def _content(specs: Iterable[ServableSpec]) -> str:
    """Return a digest of all files behind some servables, as the server has it to decide about a reload."""
    fingerprints = Fingerprints()
    lines = [f"{spec.key} {fingerprints.of(spec, model_paths(spec))}" for spec in specs]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(
            f"cannot be read: {getattr(error, 'strerror', None) or error}", file=str(path)
        ) from error


def _write(path: Path, content: bytes) -> None:
    """Write a file at once, readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(path, content, mode=0o600)
