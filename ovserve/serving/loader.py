"""Loads a Servable from a specification: check the graph, acquire its engines, make the side packets.

The whole graph is checked before any engine starts: a wrong tag must not cost a model load.

A LoRA adapter of a language model is a servable: the graph of its parent, with the adapter in its engine. The
library cannot mix adapters in a batch, so each is fused into an engine of its own. The files of the model are
mapped, so engines share what is not changed through the page cache.

Before it is ready, a graph answers the requests of `warmup_file` of its entry, or of warmup.jsonl next to it.
Each line is a body of one of the graph's endpoints, or an object as in OpenAI's batch files, whose `url` says
which: {"url": "/v1/chat/completions", "body": {...}}. A body needs no `model`. A plain model takes KServe's
bodies. The graph is not served if one of them fails.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from ovserve.access import as_system
from ovserve.api.kserve.json_body import decode_infer
from ovserve.engine.admission.calls import CallAdmission
from ovserve.engine.admission.fair_queue import Limits
from ovserve.engine.admission.text import TextAdmission
from ovserve.engine.model.files import refusal
from ovserve.engine.model.lora import adapter_file, scaling
from ovserve.engine.protocol.specs import LoraAdapter, Spec, TextSpec
from ovserve.errors import LoadError, OvserveError
from ovserve.graph import Calculator, Node, Registry
from ovserve.graph.config import GraphConfig, load_graph, parse_graph
from ovserve.graph.graph import Graph
from ovserve.graph.registry import author_files
from ovserve.kinds.payload import HttpPayload
from ovserve.kinds.resource import EngineCalculator, Host
from ovserve.kinds.tensors.inference import Models
from ovserve.kinds.tensors.node import PACKET, PlainModel, graph_text
from ovserve.kinds.tensors.spec import TensorSpec, model_file, read_mapping
from ovserve.protos.llm_pb2 import LLMCalculatorOptions
from ovserve.sandbox.bodies import Bodies
from ovserve.sandbox.images.loader import Media
from ovserve.sandbox.templates import Templates
from ovserve.serving.config.file import check_subconfig
from ovserve.serving.config.models import absent, nothing_served
from ovserve.serving.engines import AnyEngine, Engines, Key
from ovserve.serving.interface import Interface, declared, interface_of, matches
from ovserve.serving.model_size import loaded_bytes, log_memory
from ovserve.serving.plan import EngineNode, companions_of, engine_nodes, kinds_of, packets_of
from ovserve.serving.servable import Servable
from ovserve.serving.sessions import bind_sessions
from ovserve.serving.settings import GRAPH_FILE, AdapterOf, ServableSpec
from ovserve.telemetry.metrics import ModelMetrics

log = logging.getLogger(__name__)

WARMUP_FILE = "warmup.jsonl"
MOST_BYTES, MOST_LINES = 32 << 20, 1000
MAX_SHOWN_CHARACTERS = 300  # characters of an answer that is an error
INFER = "infer"
ENDPOINTS = (  # of bodies without a url, by a field that they have
    ("messages", "chat/completions"),
    ("queries", "score"),
    ("text_1", "score"),
    ("data_1", "score"),
    ("documents", "rerank"),
    ("prompt", "completions"),
    ("prompt", "images/generations"),
    ("input", "embeddings"),
    ("input", "classify"),
    ("input", "audio/speech"),
)
_URL = re.compile(r"(?:https?://[^/]+)?/?(?:v3/v1|v3|v1)/(?P<endpoint>.+)")
_INFER_URL = re.compile(r"(?:https?://[^/]+)?/?v2/models/.+/infer")


async def warm_up(servable: Servable, spec: ServableSpec, seconds: float) -> None:
    """Send the requests of the file, if there is one. Raises LoadError that names the line of one that fails,
    or that runs after `seconds`."""
    path = spec.warmup or spec.base / WARMUP_FILE
    lines = await asyncio.to_thread(_lines, path, required=spec.warmup is not None)
    number = 0
    try:
        async with asyncio.timeout(seconds):
            for line in lines:
                number += 1
                if line.strip():
                    with as_system():
                        await _send(servable, line)
    except TimeoutError:
        raise LoadError(
            f"the requests were not answered after {seconds:g} s", file=str(path), line=number
        ) from None
    except OvserveError as error:
        raise LoadError(error.message, file=str(path), line=number) from error


def _lines(path: Path, *, required: bool) -> list[bytes]:
    """Return the lines of the file; none if there is no file and none is required."""
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise LoadError(f"expected at most {MOST_BYTES} bytes, got {size}", file=str(path))
        lines = path.read_bytes().splitlines()
    except (FileNotFoundError, NotADirectoryError):  # the base of a plain model may be its file
        if not required:
            return []
        raise LoadError("the file does not exist", file=str(path), field="warmup_file") from None
    except OSError as error:
        raise LoadError(f"cannot be read: {error.strerror}", file=str(path), field="warmup_file") from error
    if len(lines) > MOST_LINES:
        raise LoadError(f"expected at most {MOST_LINES} lines, got {len(lines)}", file=str(path))
    return lines


async def _send(servable: Servable, line: bytes) -> None:
    """Send one request and read its whole answer. Raises OvserveError, also if that is an error."""
    try:
        request = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LoadError(f"expected a JSON object: {error}") from None
    endpoint, body = _endpoint(servable, request)
    encoded = msgspec.json.encode({"model": servable.name} | body if endpoint != INFER else body)
    if endpoint == INFER and servable.model is not None:
        infer_request = decode_infer(servable.name, servable.version, encoded, None).request
        infer_request.check_inputs()
        with servable.lease():
            await servable.model.infer(infer_request.inputs, infer_request.outputs)
        return
    async with servable.start(HttpPayload(endpoint, encoded)) as answer:
        first = await answer.first()
        if first.status >= 400:
            text = first.body.decode("utf-8", "replace")[:MAX_SHOWN_CHARACTERS]
            raise LoadError(f"{endpoint} answered with status {first.status}: {text}")
        more = first.more
        while more:
            more = (await (answer.next_events() if first.events else answer.next())) is not None


def _endpoint(servable: Servable, request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the endpoint of a line, and the body. Raises LoadError."""
    if "url" in request:
        url, body = request["url"], request.get("body")
        match = _URL.fullmatch(url) if isinstance(url, str) else None
        if not isinstance(body, dict):
            raise LoadError("body: expected an object")
        if isinstance(url, str) and _INFER_URL.fullmatch(url):
            return INFER, body
        if match is None:
            raise LoadError(f"url: expected a path such as /v1/chat/completions, got {url!r}")
        return match["endpoint"], body
    if servable.model is not None:
        return INFER, request
    for field, endpoint in ENDPOINTS:
        if field in request and (not servable.endpoints or matches(endpoint, servable.endpoints)):
            return endpoint, request
    served = ", ".join(sorted(servable.endpoints)) or "any"
    raise LoadError(f'no endpoint of the graph ({served}) is known to take it: add "url"')


def adapters_of(spec: ServableSpec, config: GraphConfig) -> list[ServableSpec]:
    """Return the servables of the adapters that the nodes of a graph list."""
    adapters = []
    for i, node in enumerate(config.message.node):
        options = config.options(i, LLMCalculatorOptions) if "LLM" in node.calculator else None
        for entry in options.lora_adapters if options is not None else ():
            adapter = AdapterOf(spec.name, (config.base / entry.path).resolve(), entry.alpha, node.name)
            adapters.append(replace(spec, name=entry.alias, adapter=adapter, group=""))
    return adapters


def with_adapter(nodes: Mapping[str, EngineNode], adapter: AdapterOf) -> dict[str, EngineNode]:
    """Return the engines of a graph with the adapter in the one it belongs to. Raises LoadError."""
    texts = {packet: node for packet, node in nodes.items() if isinstance(node.spec, TextSpec)}
    candidates = {packet: node for packet, node in texts.items() if adapter.node in ("", node.node.name)}
    if len(candidates) != 1:
        raise LoadError(
            f"the adapter needs one model that generates text in batches, and {adapter.parent!r} has "
            f"{len(candidates)}",
            field="lora_adapters",
        )
    ((packet, engine_node),) = candidates.items()
    spec = engine_node.spec
    if isinstance(spec, TextSpec) and spec.decoding == "paged":
        if engine_node.fallback is None:
            raise engine_node.node.error('an adapter needs engine: "genai", got "paged"', "engine")
        spec = engine_node.fallback
    try:
        file = adapter_file(adapter.path)
        alpha = adapter.alpha * scaling(file)
    except LoadError as error:
        raise engine_node.node.error(error.reason, "lora_adapters") from error
    spec = msgspec.structs.replace(spec, adapter=LoraAdapter(str(file), alpha))
    return {**nodes, packet: replace(engine_node, spec=spec, fallback=None)}


def _graph_fault(spec: ServableSpec) -> str:
    """Return why the file of a graph cannot be read; "" if it can."""
    try:
        if spec.graph.is_file():
            return ""
        why = nothing_served(spec.base) if spec.base.is_dir() else absent(spec.base)
    except OSError as error:
        return refusal(error)
    servable = f"a servable is a directory with a {GRAPH_FILE}, or a plain model"
    return f"{spec.graph} does not exist; {servable}: {why}"


@dataclass(frozen=True)
class Checked:
    """A graph that is valid as far as can be known without its engines; close its graph if it is not served.

    `engines` are keyed by the side packet that will carry each.
    """

    spec: ServableSpec
    graph: Graph
    interface: Interface
    engines: Mapping[str, EngineNode]

    @property
    def nodes(self) -> Mapping[str, Node]:
        return {packet: engine.node for packet, engine in self.engines.items()}

    @property
    def engine_specs(self) -> Mapping[str, Spec]:
        return {packet: engine.spec for packet, engine in self.engines.items()}


def model_paths(spec: ServableSpec) -> tuple[str, ...]:
    """Return every path in options of the graph, existing or not; none if the graph cannot be parsed.

    Links are not resolved, so a link moved to another model is a change.
    """
    if spec.model is not None:
        return spec.model.model_paths
    try:
        config = _graph_config(spec)
    except LoadError:
        return ()
    own = () if spec.adapter is None else (str(spec.adapter.path),)
    return (*(str(config.base / text) for text in sorted(set(config.paths()))), *own)


def check(spec: ServableSpec, registry: Registry, *, models: bool = True) -> Checked:
    """Check a specification. Raises LoadError with file, line, node and field where they are known.

    Without `models` the options of engines are not looked at, and the result has no engines.
    """
    if fault := spec.fault or spec.wrong_name:
        raise LoadError(fault, file=spec.origin)
    if spec.model is not None:
        return _checked_model(spec, spec.model, registry)
    if fault := "" if spec.text else _graph_fault(spec):
        raise LoadError(fault, file=spec.origin)
    if spec.subconfig is not None and spec.subconfig.is_file():
        for warning in check_subconfig(spec.subconfig):
            log.warning("%s", warning)
    config = _graph_config(spec)
    nodes = registry if spec.text else registry.for_directory(spec.base)
    if not models:
        nodes = nodes.mapped(_without_options)
    types: dict[str, type] = {}
    for kind in kinds_of(nodes):
        types |= dict.fromkeys(packets_of(config, kind.tag), kind.packet_type)
        types |= dict.fromkeys(companions_of(config, kind), object)
    graph = Graph(config, nodes, types)
    for warning in graph.plan.warnings:
        log.warning("%s", warning)
    interface = interface_of(graph)
    engines = engine_nodes(graph, spec.name) if models else {}
    if spec.adapter is not None and models:
        engines = with_adapter(engines, spec.adapter)
    return Checked(spec, graph, interface, engines)


def _without_options(cls: type[Calculator]) -> type[Calculator]:
    if not issubclass(cls, EngineCalculator):
        return cls
    members = {"parse_options": classmethod(lambda cls, node: None), "__doc__": cls.__doc__}
    return type(cls.__name__, (cls,), members | {"__module__": cls.__module__})


def listed_with_adapters(specs: Sequence[ServableSpec]) -> list[ServableSpec]:
    """Return the specifications, and those of the adapters that their graphs list. A name that is taken keeps
    its servable."""
    by_key = {spec.key: spec for spec in specs}
    for graph in list(by_key.values()):
        if graph.model or graph.adapter or graph.fault or not _may_list_adapters(graph):
            continue
        adapters: list[ServableSpec] = []
        with suppress(LoadError):  # it is reported when the graph is checked
            adapters = adapters_of(graph, _graph_config(graph))
        for spec in adapters:
            if spec.key in by_key and by_key[spec.key].adapter != spec.adapter:
                log.error("%s: the alias %r of an adapter is a name already", graph.key, spec.name)
            else:
                by_key.setdefault(spec.key, spec)
    return list(by_key.values())


def _may_list_adapters(spec: ServableSpec) -> bool:
    """Look for the field's name first: to parse each graph takes 3 ms, and all are looked at each second."""
    try:
        return b"lora_adapters" in (spec.text.encode(errors="replace") or spec.graph.read_bytes())
    except (OSError, ValueError):
        return False


def _checked_model(spec: ServableSpec, model: TensorSpec, registry: Registry) -> Checked:
    """Check a plain model: it is served by a graph of one node."""
    model_file(spec.base)
    read_mapping(spec.base)
    config = parse_graph(graph_text(model), f"{spec.origin}: {spec.label}", spec.base)
    graph = Graph(config, registry, {PACKET: PlainModel})
    return Checked(spec, graph, interface_of(graph), engine_nodes(graph, spec.name))


def _graph_config(spec: ServableSpec) -> GraphConfig:
    if spec.text:
        return parse_graph(spec.text, f"{spec.graph} (made in memory)", spec.base)
    return load_graph(spec.graph, spec.base)


def check_graph(directory: Path, registry: Registry) -> tuple[Graph, dict[str, Node]]:
    """Return the graph of a directory, and its engine nodes by side packet. Raises as `check`."""
    checked = check(ServableSpec.of_directory(directory.name, directory), registry)
    return checked.graph, dict(checked.nodes)


async def load_servable(
    checked: Checked,
    engines: Engines,
    keys: Mapping[str, Key],
    templates: Templates,
    media: Media,
    bodies: Bodies,
    metrics: ModelMetrics,
    limits: Limits,
    models: Models,
) -> Servable:
    """Load. `keys` are the engines to acquire, by side packet. Raises LoadError and then holds nothing."""
    name = checked.spec.name
    host = Host(
        name,
        _code(checked),
        templates,
        media,
        bodies,
        admit=lambda engine, own: TextAdmission(engine, metrics.meter, limits.with_own(own)),
        admit_calls=lambda engine, own: CallAdmission(engine, metrics.meter, limits.with_own(own)),
        audio=media.audio,
        metrics=metrics.kinds,
        version_metrics=metrics.versions[checked.spec.version],
    )
    acquired: dict[str, AnyEngine] = {}
    side: dict[str, Any] = {}
    try:
        for packet, engine_node in checked.engines.items():
            if engine_node.spec.conversation == "steps":
                templates.prepare()  # while the engine loads, which reports its template when it is ready
            engine = acquired[packet] = await _acquire(checked, engine_node, engines, keys[packet])
            await asyncio.to_thread(log_memory, name, engine)
            # A shared process knows the memory of all its models only.
            held = 0 if engine.spec.hosted else engine.memory_held
            engine.dormancy.bytes = held or await asyncio.to_thread(loaded_bytes, engine.spec)
            side[packet] = await engine_node.kind.make(engine_node.node, engine_node.options, engine, host)
        bind_sessions(checked.graph.plan.nodes, models)
        await _load_nodes(checked, side, metrics, engines.ready_timeout)
    except BaseException:
        for engine in acquired.values():
            await engines.release(engine)
        checked.graph.close()
        raise
    config = checked.graph.plan.config
    for engine_node in checked.engines.values():
        side |= dict.fromkeys(companions_of(config, engine_node.kind) - side.keys())
    servable = Servable(
        name,
        checked.graph,
        acquired,
        side,
        engines.release,
        checked.interface,
        metrics,
        *declared(checked.graph, name),
        bodies=bodies,
        limits=limits,
        version=str(checked.spec.version),
        parent="" if checked.spec.adapter is None else checked.spec.adapter.parent,
        model=side[PACKET] if checked.spec.plain else None,
    )
    try:
        if not checked.spec.on_demand:
            await warm_up(servable, checked.spec, engines.ready_timeout)
    except BaseException:
        await servable.stop()
        raise
    return servable


async def _load_nodes(
    checked: Checked, side: Mapping[str, Any], metrics: ModelMetrics, seconds: float
) -> None:
    """Call the `load()` of the graph's nodes; the engines are there. Raises LoadError."""
    graph = checked.graph
    try:
        async with asyncio.timeout(seconds):
            await graph.load_nodes(side, metrics.node_events)
    except TimeoutError as error:
        file = graph.plan.config.file
        raise LoadError(f"the load() of its nodes took longer than {seconds:g} s", file=file) from error
    durations = {p.node.name: s.seconds for p, s in graph.loaded}
    if durations:
        listed = ", ".join(f"{name} in {seconds:.2f} s" for name, seconds in durations.items())
        log.info("%s: nodes loaded: %s", checked.spec.name, listed)


def _code(checked: Checked) -> bytes:
    """Return what else decides a graph's answers: its nodes, and the authors' code."""
    nodes = checked.graph.plan.config.message.SerializeToString(deterministic=True)
    files = () if checked.spec.text else author_files(checked.spec.base)
    return nodes + b"\0".join(path.read_bytes() for path in files)


async def _acquire(checked: Checked, engine_node: EngineNode, engines: Engines, key: Key) -> AnyEngine:
    """Acquire an engine. Its error names the option; the node adds where that is written."""
    try:
        return await engines.acquire(key, on_demand=checked.spec.on_demand, fallback=engine_node.fallback)
    except LoadError as error:
        spec, nodes = checked.spec, [plan.node for plan in checked.graph.plan.nodes]
        reason = f"{error.file}: {error.reason}" if error.file else error.reason
        if spec.plain:
            raise LoadError(reason, file=spec.origin, field=error.field, transient=error.transient) from error
        node = next((n for n in nodes if n.name == error.node), engine_node.node)
        raised = node.error(reason, error.field or "models_path")
        raised.transient = error.transient
        raise raised from error
