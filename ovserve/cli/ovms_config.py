"""OVMS's --add_to_config, --remove_from_config and --list_models: edit a configuration, without serving.

A running server takes the change up, because it polls the file. It is replaced by one rename, so that no
reader sees half of it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ovserve.cli.graph_options import graph_options, plain_options
from ovserve.cli.local import names_in
from ovserve.engine.model.files import cloud_fault
from ovserve.errors import InvalidArgument, LoadError
from ovserve.serving.config.file import ConfigFile
from ovserve.serving.config.models import entry_of, looks_plain
from ovserve.serving.config.schema import FILE
from ovserve.serving.spec import GRAPH_FILE

FLAGS = {
    "list_models": "list the graphs and models in --model_repository_path, and end",
    "add_to_config": "add --model_name to --config_path, and end",
    "remove_from_config": "remove --model_name from --config_path, and end",
}
LISTS = ("model_config_list", "mediapipe_config_list")


def add_to(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Edit a configuration, as OVMS does")
    for name, text in FLAGS.items():
        group.add_argument(f"--{name}", action="store_true", help=text)
    group.add_argument(
        "--group_name",
        default="",
        help="with --add_to_config: group of the entry, loaded and unloaded as one; permanent: never",
    )


def edits_config(arguments: argparse.Namespace) -> bool:
    return any(getattr(arguments, name) for name in FLAGS)


def run(arguments: argparse.Namespace, repository: Path, config: str, name: str, path: str) -> None:
    """Do what the flag asks. Raises InvalidArgument, or LoadError for a file that cannot be used."""
    flags = [f"--{flag}" for flag in FLAGS if getattr(arguments, flag)]
    if len(flags) > 1:
        raise InvalidArgument(f"{' and '.join(flags)}: give only one of them")
    if arguments.source:
        raise InvalidArgument(f"{flags[0]}: has no SOURCE, got {arguments.source!r}; name --config_path")
    if arguments.list_models:
        _list(repository)
        return
    if not name:
        raise InvalidArgument(f"{flags[0]}: needs --model_name")
    file = Path(config) if config else repository / "config.json"
    if file.suffix != ".json":
        raise InvalidArgument(f"{flags[0]}: only a .json file can be edited, got {file}")
    if arguments.add_to_config:
        beside = file.parent / path  # where OVMS looks
        there = repository / name if not path else beside if beside.exists() else Path(path)
        group = {"group_name": arguments.group_name} if arguments.group_name else {}
        _add(file, name, there, graph_options(arguments) | plain_options(arguments), group)
    else:
        _remove(file, name)


def _list(repository: Path) -> None:
    """Print the names of graphs and plain models: folders, or OWNER/NAME."""
    if not repository.is_dir():
        raise LoadError(f"--model_repository_path: {repository} is not a directory")
    plain = {path.name for path in repository.iterdir() if path.is_dir() and looks_plain(path)}
    for name in sorted({*names_in(repository), *plain}):
        print(name)  # noqa: T201


def _add(
    file: Path, name: str, directory: Path, options: Mapping[str, Any], group: Mapping[str, str]
) -> None:
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
    entry: dict[str, Any] = {"name": name, "base_path": inside, **group, **entry_of(options)}
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
    mode = file.stat().st_mode & 0o777 if file.exists() else 0o644
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".config-", delete=False) as out:
        out.write(json.dumps(config, indent=4, ensure_ascii=False) + "\n")
    os.chmod(out.name, mode)
    os.replace(out.name, file)
