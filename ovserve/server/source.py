"""Resolves the SOURCE of `ovserve serve` to a repository of graphs.

SOURCE is a short name, an id on the hub, a .gguf file, a directory with a model, a graph or graphs, a graph
file, or a configuration file. Without one it is the default model. A model without a graph gets the one that
`ovserve pull` would write, made in memory. Options of the graph need a model, and replace its graph file for
this run, as in OVMS. Of a graph that pull wrote, the other options are kept.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ovserve.engine.model.files import LANGUAGE_MODELS, cloud_fault, model_in
from ovserve.errors import InvalidArgument, NotFound
from ovserve.kinds.encoders.spec import encoder_task
from ovserve.kinds.tensors.spec import SUFFIXES, is_model_file
from ovserve.pull.encoder_graph import TASKS as ENCODER_TASKS
from ovserve.pull.encoder_graph import encoder_graph
from ovserve.pull.graph_text import graph_text
from ovserve.pull.packaged import DEFAULT_MODEL, MODELS
from ovserve.pull.source import HUB_ID, SHORT_NAMES, Say, find
from ovserve.server.settings import Settings
from ovserve.serving.config.file import MESH_FOLDER, ConfigFile, GraphsDirectory, Repository, SingleGraph
from ovserve.serving.config.models import FLAGS, entry_of, looks_plain
from ovserve.serving.config.schema import ENTRY
from ovserve.serving.settings import GRAPH_FILE, ServableSpec

CONFIG_FILE = "config.json"
CONFIG_SUFFIXES = (".json", ".yaml", ".yml")

Option = int | bool | str | float


@dataclass(frozen=True)
class Served:
    """`only` is the name of the one graph there is; empty for a repository of any number. `notices` are for
    the log."""

    repository: Repository
    what: str
    only: str = ""
    notices: tuple[str, ...] = ()


def resolve(settings: Settings, options: Mapping[str, Option], say: Say, task: str = "") -> Served:
    """Find what is to be served, and pull it if it is a model that is not here yet. `options` are those of a
    graph or of a plain model, by name; `task` says which graph a model gets. Raises an OvserveError that says
    what to do."""
    if task and (settings.config_path or settings.graphs_dir):
        raise InvalidArgument("--task: only for one model; a configuration or a directory has its graphs")
    if settings.config_path:
        return _configuration(Path(settings.config_path), options)
    if settings.graphs_dir:
        return _directory(Path(settings.graphs_dir), options)
    repository = Path(os.path.expanduser(settings.model_repository_path))
    one = _Model("--model_path", settings.model_name, repository, options, task, say)
    if settings.model_path:
        return one.at(Path(os.path.expanduser(settings.model_path)))
    source = settings.source_model
    if not source:
        listed = repository / CONFIG_FILE
        if listed.is_file() and not options and not task:
            return _configuration(listed, options)
        source = DEFAULT_MODEL
    one = replace(one, source=source)
    if source not in SHORT_NAMES and (path := Path(os.path.expanduser(source))).exists():
        return one.at(path)
    return replace(one, name=one.name or source).at(_pulled(source, repository, say, task))


def in_memory(
    model: Path, name: str = "", options: Mapping[str, Option] | None = None, draft: str = ""
) -> ServableSpec:
    """Return the graph that `ovserve pull` would write for a model on disk. `name` is by default the path's;
    `draft` is the path of a draft model.

    Tools reach models whose template has no place for them, unless a parser is given. Raises InvalidArgument.
    """
    values = dict(options or {})
    if values.get("tool_parser", "none") == "none":
        values.setdefault("generic_tool_prompt", True)
    base = (model if model.is_dir() else model.parent).absolute()
    text = graph_text(values, str(model.absolute()), draft)
    return ServableSpec(name or name_of(model), base, base / GRAPH_FILE, origin=str(model), text=text)


def model_without_graph(path: Path) -> ServableSpec | None:
    """Return the graph of a .gguf file, or of a directory with a language model; None for anything else."""
    if path.suffix == ".gguf" and path.is_file():
        return in_memory(path)
    if path.is_dir() and not (path / GRAPH_FILE).exists() and has_model(path) and not encoder_task(path):
        return in_memory(model_in(path))
    return None


def encoder_in_memory(
    model: Path, task: str, name: str = "", options: Mapping[str, Option] | None = None
) -> ServableSpec:
    """Return the graph that `ovserve pull --task` would write for an encoder on disk.

    Raises InvalidArgument for an option of another task, or for a path that is not a directory.
    """
    if not model.is_dir():
        raise InvalidArgument(f"--task {task}: expected a directory with a model, got {model}")
    base = model.absolute()
    text = encoder_graph(task, options or {}, str(base))
    return ServableSpec(name or name_of(model), base, base / GRAPH_FILE, origin=str(model), text=text)


def name_of(path: Path) -> str:
    """Return the name under which a path is served: that of its folder, or of its file without the suffix."""
    path = path.absolute()
    return path.stem if path.is_file() and path.suffix else path.name


def has_model(directory: Path) -> bool:
    """Return whether a directory holds one language model that can be named by its path."""
    model = model_in(directory)
    return model != directory or any((directory / name).is_file() for name in LANGUAGE_MODELS)


def has_versions(path: Path) -> bool:
    """Return whether a directory is that of a plain model: with a folder for each version."""
    return path.is_dir() and any(f.is_dir() and f.name.isdigit() for f in path.iterdir())


def _is_plain(path: Path) -> bool:
    """Return whether a path is a plain model, and neither a graph, nor a model that gets one."""
    if path.is_file():
        return is_model_file(path)
    graphs = (path / GRAPH_FILE, path / CONFIG_FILE, *path.glob(f"*/{GRAPH_FILE}"))
    if any(file.is_file() for file in graphs) or encoder_task(path) or not path.is_dir():
        return False
    return not has_model(path) and (has_versions(path) or looks_plain(path))


def _of_graph(options: Mapping[str, Option], path: Path) -> tuple[dict[str, Option], list[str]]:
    """Return the options of a graph, and notices of others.

    Raises InvalidArgument for one of plain models.
    """
    notices = []
    for name in (name for name in options if name in FLAGS):
        if name != "nireq":
            raise InvalidArgument(
                f"--{name} is of a plain model, and {path} is none; see docs/plain-models.md for what is one"
            )
        notices.append(f"--{name} has no effect: {ENTRY.keys[name].effect}")
    return {name: value for name, value in options.items() if name not in FLAGS}, notices


@dataclass(frozen=True)
class _Model:
    """One model or graph that is to be served: how it was named, and what was asked of it."""

    source: str
    name: str  # under which it is served; "": that of its path
    repository: Path
    options: Mapping[str, Option]
    task: str
    say: Say

    def at(self, path: Path) -> Served:
        name = self.name or name_of(path.parent if path.name == GRAPH_FILE else path)
        if not self.task and _is_plain(path):
            spec = ServableSpec.of_directory(name, path, origin=self.source)  # the loader decides
            return Served(SingleGraph(spec, entry_of(self.options)), self.source, name)
        options, notices = _of_graph(self.options, path)
        served = replace(self, name=name, options=options)._graph_at(path)
        return replace(served, notices=(*served.notices, *notices))

    def _graph_at(self, path: Path) -> Served:
        if self.task in ENCODER_TASKS and path.exists():
            return _single(encoder_in_memory(path, self.task, self.name, self.options))
        if path.is_file() and path.suffix != ".gguf":
            return self._file(path)
        for file in (path / GRAPH_FILE, path / MESH_FOLDER / GRAPH_FILE):  # OVMS looks in both
            if file.is_file():
                return self._graph(file)
        if not self.task and (detected := encoder_task(path)):
            return _single(encoder_in_memory(path, detected, self.name, self.options))
        if path.is_file() or (path.is_dir() and has_model(path)):
            return _single(self._in_memory(model_in(path)))
        if path.is_dir() and any(path.glob(f"*/{GRAPH_FILE}")):
            return _directory(path, self.options)
        if (path / CONFIG_FILE).is_file() and not any(path.glob("*.safetensors")):
            return _configuration(path / CONFIG_FILE, self.options)
        if path.is_dir() and (several := sorted(f for f in path.iterdir() if has_versions(f))):
            raise InvalidArgument(
                f"{self.source}: {path} holds {len(several)} models; serve one of them, such as "
                f"{several[0]}, or all by a config.json (docs/plain-models.md)"
            )
        if not path.exists():
            raise NotFound(f"{self.source}: {cloud_fault(path) or f'{path} does not exist'}")
        find(str(path.absolute()), {})  # says what the directory lacks, and how to export a model
        raise InvalidArgument(f"{self.source}: {path} holds neither a {GRAPH_FILE} nor a model")

    def _in_memory(self, model: Path) -> ServableSpec:
        """Return a model's graph. A .gguf file is converted, unless its options need the other engine."""
        if model.suffix != ".gguf":
            return in_memory(model, self.name, self.options)
        from ovserve.pull.run import convert_for_serving, with_paged_engine  # as long to import as the server

        paged = with_paged_engine(self.options)
        if paged.get("engine") != "paged":
            return in_memory(model, self.name, self.options)
        directory = convert_for_serving(model, self.repository, self.say)
        return in_memory(directory, self.name or name_of(model), paged)

    def _file(self, path: Path) -> Served:
        if path.name.endswith(".pbtxt"):
            return self._graph(path)
        if path.suffix in CONFIG_SUFFIXES:
            return _configuration(path, self.options)
        if is_model_file(path):
            raise InvalidArgument(f"--task: {path} is a plain model, which has none")
        raise InvalidArgument(
            f"{self.source}: expected a .gguf file, a {GRAPH_FILE}, a model file ({', '.join(SUFFIXES)}) or "
            f"a configuration, got {path.name}"
        )

    def _graph(self, file: Path) -> Served:
        directory = file.parent
        if not self.options:
            spec = ServableSpec.of_directory(self.name, directory, origin=str(directory))
            return _single(replace(spec, graph=file.absolute()))
        from ovserve.pull.graph_file import pulled_model  # its check of a graph imports all calculators

        first = next(iter(self.options))
        if (pulled := pulled_model(file, self.options)) is not None:
            notice = f"{file}, which pull wrote, is used with --{first} of the command line"
            return _single(in_memory(pulled.model, self.name, pulled.options, pulled.draft), notice)
        if not has_model(directory):
            raise InvalidArgument(
                f"--{first}: {file} has a graph of its own and no model next to it; change the file"
            )
        notice = f"{file}, which stays as it is, is not used: the command line gives --{first}"
        return _single(in_memory(model_in(directory), self.name, self.options), notice)


def _single(spec: ServableSpec, *notices: str) -> Served:
    return Served(SingleGraph(spec), str(spec.origin or spec.base), spec.name, notices)


def _configuration(path: Path, options: Mapping[str, Option]) -> Served:
    _no_options(options, path)
    return Served(ConfigFile(path), str(path))


def _directory(path: Path, options: Mapping[str, Option]) -> Served:
    _no_options(options, path)
    return Served(GraphsDirectory(path), str(path))


def _no_options(options: Mapping[str, Option], path: Path) -> None:
    if options:
        raise InvalidArgument(f"--{next(iter(options))}: only for one model; {path} may list several graphs")


def _pulled(source: str, repository: Path, say: Say, task: str) -> Path:
    """Return the folder of a model in the repository; pull it if it is not there."""
    there = repository / source
    if (there / GRAPH_FILE).is_file() or (there.is_dir() and has_model(there)):
        return there
    if source not in SHORT_NAMES and not HUB_ID.fullmatch(source):
        find(source, MODELS)  # raises: with the nearest short name
    from ovserve.pull.run import Wanted, pull  # takes as long to import as the server

    return pull(Wanted(source, repository, task=task), say, hint=False)
