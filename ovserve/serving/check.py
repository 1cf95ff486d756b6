"""Check what would be served: graphs, model files, chat templates, parsers, devices and their properties,
memory. With a `Trial`, whether it loads.

The graph is checked by the loader's own code, and the template is compiled by the server's own template
process. So what passes here can only fail later in the engine. Plain models have little else than options of
their engine, so the command loads them in any case.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from ovserve.access import as_system
from ovserve.children import bound_command
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.host.memory import BYTES_PER_GIB, memory
from ovserve.engine.model.files import (
    ModelFiles,
    broken_file,
    cloud_fault,
    read_model_files,
    refuse_for_library,
)
from ovserve.engine.model.script import read_script
from ovserve.engine.protocol.admission import context_limit
from ovserve.engine.protocol.specs import SCRIPT_SUFFIX, GenerationSpec, Spec, TextFacts, TextSpec
from ovserve.errors import LoadError
from ovserve.graph import Registry
from ovserve.graph.planning import NodePlan
from ovserve.kinds.tensors.inference import Models
from ovserve.kinds.tensors.spec import is_model_file
from ovserve.kinds.text.engine_choice import TextEngine
from ovserve.kinds.text.options import LlmOptions
from ovserve.kinds.text.resource import choose_parsers, load_template
from ovserve.llm.parsing.registry import ParserChoice, choose
from ovserve.sandbox.templates import Templates
from ovserve.serving.config.file import (
    ConfigFile,
    GraphsDirectory,
    RepositoryContent,
    graph_spec,
    with_models,
)
from ovserve.serving.config.models import looks_plain, model_specs
from ovserve.serving.loader import check
from ovserve.serving.manager import Manager
from ovserve.serving.model_size import LoadEstimate, ModelSize, cache_bytes, estimate, model_size, weights
from ovserve.serving.plan import EngineNode
from ovserve.serving.sessions import ServedModels, bind_sessions, unknown_models
from ovserve.serving.settings import GRAPH_FILE, Convert, ServableSpec, ServingSettings

PROBE_SECONDS = 60.0


def cache_fault(spec: Spec) -> str:
    """Return why the configured cache does not fit here; "" if it does, or the memory is unknown."""
    size = spec.cache_size if isinstance(spec, TextSpec) else 0
    size_in_bytes, there = size * BYTES_PER_GIB, memory()
    if not there.available or size_in_bytes <= there.available:
        return ""
    free = there.available / BYTES_PER_GIB
    return f"{size} GB are more than the {free:.1f} GB that are free on this {there.limit}"


class Probe:
    """Queries the library in a child process, once for each device and properties."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[str, str]] = {}
        self.untried = ""  # why the library could not be queried

    async def fault(self, device: str, properties: str) -> tuple[str, str]:
        """Return the option and what is wrong with it; empty if nothing is."""
        key = (device, properties)
        if key not in self._known:
            self._known[key] = await self._ask(device, json.loads(properties))
        return self._known[key]

    async def _ask(self, device: str, properties: object) -> tuple[str, str]:
        process = await asyncio.create_subprocess_exec(
            *bound_command([sys.executable, "-m", "ovserve.kinds.text.worker.genai.probe"]),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                out, errors = await process.communicate(json.dumps([[device, properties]]).encode())
        except TimeoutError:
            process.kill()
            await process.wait()
            self.untried = f"OpenVINO gave no answer in {PROBE_SECONDS:g} s"
            return "", ""
        if process.returncode:
            last = errors.decode(errors="replace").strip().splitlines()[-1:]
            self.untried = f"OpenVINO could not be queried: {''.join(last) or process.returncode}"
            return "", ""
        ((option, reason),) = json.loads(out.splitlines()[-1])
        return option, reason


CONFIG_SUFFIXES = (".json", ".yaml", ".yml")
LANGUAGE_MODELS = ("openvino_model", "openvino_language_model")
TOKENIZERS = ("openvino_tokenizer", "openvino_detokenizer")


class Model(msgspec.Struct, frozen=True):
    """One engine that a graph would start. `context` in tokens; `template` as a description."""

    spec: GenerationSpec
    engine: TextEngine
    architecture: str
    context: int | None
    size: ModelSize
    template: str
    parsers: ParserChoice
    load: LoadEstimate

    @property
    def full_context(self) -> int:
        """Return the bytes of KV cache of one request that uses all of the context; 0: unknown."""
        return int(self.size.cache_per_token * (self.context or 0))

    @property
    def memory(self) -> int:
        """Return the bytes of memory with the cache. The cache counts as configured, else as one context."""
        return self.load.resident + cache_bytes(self.spec, self.size, self.context)


@dataclass
class Report:
    """The result for one servable, which would be served if `errors` is empty."""

    spec: ServableSpec
    models: list[Model] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    located: list[LoadError] = field(default_factory=list)  # those of the errors that name a place

    def fail(self, error: LoadError) -> None:
        for each in (error, *error.others):
            self.errors.append(str(each))
            self.located.append(each)


def find(path: Path) -> RepositoryContent:
    """Find the servables of a graph file or directory, a configuration file, or a directory of graph
    directories.

    Raises LoadError.
    """
    if fault := cloud_fault(path):
        raise LoadError(fault)
    if path.is_file() and path.suffix in CONFIG_SUFFIXES:
        return ConfigFile(path).read()
    if path.is_file() and not is_model_file(path):
        spec = graph_spec(path.parent.absolute().name, path.parent, str(path))
        return with_models([[replace(spec, graph=path.absolute())]], [])
    if (path / GRAPH_FILE).is_file():
        return with_models([[graph_spec(path.absolute().name, path, str(path))]], [])
    if looks_plain(path):
        return RepositoryContent(tuple(model_specs(path.absolute().stem, path.absolute(), {}, str(path))))
    repository = GraphsDirectory(path).read()
    if not repository.specs:
        raise LoadError(f"{path} has no {GRAPH_FILE}, and no directory in it has one")
    return repository


def graphs_below(path: Path) -> tuple[ServableSpec, ...]:
    """Find all graphs at or below a directory, named by their path from there: OWNER/NAME."""
    if not path.is_dir():
        return find(path).specs
    specs = []
    for place, folders, names in os.walk(path):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        if GRAPH_FILE in names:
            name = Path(place).relative_to(path).as_posix() if Path(place) != path else path.absolute().name
            specs.append(ServableSpec.of_directory(name, Path(place), origin=place))
    return tuple(specs)


async def report(
    spec: ServableSpec,
    registry: Registry,
    templates: Templates,
    probe: Probe | None = None,
    plain_models: Collection[str] | None = None,
    models: Models | None = None,
) -> Report:
    """Check one servable. Without a `probe`, devices and their properties are not checked, and without the
    names of `plain_models` not whether the graph's are there. `models` are those that are loaded."""
    result = Report(spec)
    try:
        checked = check(spec, registry)
    except LoadError as error:
        result.fail(error)
        return result
    result.warnings += checked.graph.plan.warnings
    result.warnings += _absent_files(checked.graph.plan.nodes)
    if plain_models is not None:
        unknown = list(map(str, unknown_models(checked.graph.plan.nodes, plain_models)))
        result.errors += unknown
        if models is not None and not unknown:
            try:
                bind_sessions(checked.graph.plan.nodes, models)
            except LoadError as error:
                result.fail(error)
    for engine in checked.engines.values():
        try:
            if (model := await _model(engine, result, templates)) is not None:
                result.models.append(model)
            if engine.kind.notes is not None:
                result.notes += engine.kind.notes(engine.options)
            if probe is not None:
                result.errors += await _engine_faults(engine, probe)
        except LoadError as error:
            result.fail(error)
    checked.graph.close()
    return result


def _absent_files(nodes: Iterable[NodePlan]) -> Iterator[str]:
    """Yield a warning for each option `*_path` whose file is absent. It is none where `load()` makes it."""
    for plan in nodes:
        options = plan.contract.options
        values = msgspec.structs.asdict(options) if isinstance(options, msgspec.Struct) else {}
        for name, text in values.items():
            is_path = name.endswith("_path") and isinstance(text, str) and text
            if is_path and not (plan.node.config.base / text).exists():
                yield str(plan.node.error(f"{text} does not exist", name))


class Trial:
    """Loads what is checked as a server would. Plain models stay until `stop`, because graphs use them."""

    def __init__(self, registry: Registry, seconds: float, convert: Convert) -> None:
        settings = EngineSettings(ready_timeout=seconds, keep_shared=True)
        self._manager = Manager(registry, ServingSettings(settings, convert=convert))
        self.models = ServedModels(self._manager.entries)

    async def load(self, result: Report) -> float:
        """Load a servable; return the seconds. Its error is reported."""
        began = time.monotonic()
        try:
            with as_system():
                await self._manager.load(result.spec.name, result.spec)
                if not result.spec.plain:
                    await self._manager.unload(result.spec.name)
        except LoadError as error:
            result.errors.append(str(error))
        return time.monotonic() - began

    async def stop(self) -> None:
        await self._manager.stop()


async def _engine_faults(engine: EngineNode, probe: Probe) -> list[str]:
    """Return what an engine would reject, as far as the library can be asked without a model."""
    spec, node = engine.spec, engine.node
    if engine.kind.check is not None:
        engine.kind.check(node, engine.options)
        if fault := broken_file([spec.model_path]):
            return [str(node.error(fault, "models_path"))]
    elif spec.scripted or spec.conversation != "steps":
        return []
    problems = [("cache_size", reason)] if (reason := cache_fault(spec)) else []
    fields = engine.kind.options_type.DESCRIPTOR.fields_by_name
    devices = [(spec.device, spec.properties)]
    if isinstance(spec, TextSpec) and spec.draft is not None:
        devices.append((spec.draft.device or spec.device, "{}"))
    for device, properties in devices:
        option, reason = await probe.fault(device, properties)
        if reason:
            problems.append((option if option in fields or option != "device" else "target_device", reason))
    return [str(node.error(reason, option)) for option, reason in problems]


async def _model(engine: EngineNode, result: Report, templates: Templates) -> Model | None:
    """Return None for an engine that is not text generation: its own kind checks its files."""
    options = engine.options
    if not isinstance(options, LlmOptions):
        return None
    spec = options.spec
    files = _files(spec.model_path)
    if options.engine.engine.name != "paged":
        refuse_for_library(spec.model_path, files)
    result.errors += _missing(Path(spec.model_path), TOKENIZERS)
    for draft in spec.model_paths[1:]:
        result.errors += _missing(Path(draft), ())  # it receives tokens
    context = context_limit(files.max_length, spec.max_model_len)
    facts = TextFacts(chat_template=files.chat_template, tool_template=files.tool_template)
    template = await load_template(engine.node, options, facts, templates)
    if template is None:
        result.warnings.append(f"{spec.model_path} has no chat template: chat and messages would be rejected")
    if context is None:
        result.warnings.append(f"{spec.model_path} does not define its context length")
    own = "of the graph" if options.template else "of the model"
    return Model(
        spec,
        options.engine.engine,
        files.architecture or "unknown",
        context,
        model_size(spec),
        own if template is not None else "none",
        choose_parsers(options, template),
        estimate(spec),
    )


def _files(path: str) -> ModelFiles:
    """Raises LoadError."""
    if not path.endswith(SCRIPT_SUFFIX):
        return read_model_files(path)
    script = read_script(path)
    return ModelFiles(script.max_length, script.chat_template, architecture="scripted")


def _missing(directory: Path, tokenizers: Iterable[str]) -> Iterable[str]:
    """Yield what a directory in OpenVINO IR form lacks."""
    if not directory.is_dir():
        return
    models = [name for name in LANGUAGE_MODELS if (directory / f"{name}.xml").is_file()]
    if not models:
        yield f"{directory} has no {' and no '.join(f'{name}.xml' for name in LANGUAGE_MODELS)}"
    names = [f"{name}{suffix}" for name in (*models, *tokenizers) for suffix in (".xml", ".bin")]
    missing = [name for name in names if not (directory / name).is_file()]
    yield from (f"{directory} has no {name}" for name in missing)
    if not missing and (fault := broken_file([str(directory)])):
        yield fault


# ---- models without a graph


class ModelAt(msgspec.Struct, frozen=True):
    """A model as its files describe it; `fault` is why they cannot be read."""

    weights: int
    architecture: str = "-"
    context: int | None = None
    parsers: ParserChoice | None = None
    fault: str = ""


def model_places(path: Path) -> list[Path]:
    """Return .gguf files and directories with a language model in OpenVINO IR form, at or below `path`."""
    if path.is_file():
        return [path] if path.suffix == ".gguf" else []
    models = []
    for place, folders, names in os.walk(path):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        models += [Path(place, n) for n in sorted(names) if n.endswith(".gguf")]
        if any(f"{name}.xml" in names for name in LANGUAGE_MODELS):
            models.append(Path(place))
    return models


def models_at(place: Path) -> ModelAt:
    try:
        files = read_model_files(str(place))
    except LoadError as error:
        return ModelAt(weights(str(place)), fault=error.reason)
    text = f"{files.chat_template or ''}{files.tool_template or ''}"
    parsers = choose("", "", text or None, model=place.name)
    return ModelAt(weights(str(place)), files.architecture or "unknown", files.max_length, parsers)
