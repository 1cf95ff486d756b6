"""A specification to a Servable: check the graph, take its engines, make the side packets.

Called by the manager, and by `check.py` for the first half. The graph is checked whole before any engine
starts: a wrong tag must not cost a model load.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ovserve.admission.controller import AdmissionController, Limits
from ovserve.calculators.options.llm import check_options, engine_spec
from ovserve.calculators.options.pipeline_type import ONE_AT_A_TIME
from ovserve.calculators.options.template import own_template
from ovserve.calculators.resources import LlmResources
from ovserve.engine.client.client import EngineClient
from ovserve.engine.client.fingerprint import fingerprint
from ovserve.engine.host.memory import memory
from ovserve.engine.protocol.messages import EngineSpec
from ovserve.errors import LoadError
from ovserve.graph import Node, Registry
from ovserve.graph.config import GraphConfig, load_graph
from ovserve.graph.graph import Graph
from ovserve.graph.registry import GRAPH_FILE as CALCULATORS_FILE
from ovserve.llm.images import Vision
from ovserve.llm.model import ModelContext
from ovserve.llm.parsing.core.choice import ParserChoice, choose
from ovserve.llm.prompt import generic_tools
from ovserve.llm.prompt.chat_template import ChatTemplate
from ovserve.protos.llm_pb2 import LLMCalculatorOptions
from ovserve.sandbox.bodies import Bodies
from ovserve.sandbox.images.loader import Media
from ovserve.sandbox.templates.pool import TemplatePool
from ovserve.serving.config.file import check_subconfig
from ovserve.serving.engines import Engines, Key
from ovserve.serving.interface import Interface, interface_of
from ovserve.serving.model_size import cache_bytes, model_size
from ovserve.serving.servable import Servable
from ovserve.serving.spec import GRAPH_FILE, ServableSpec
from ovserve.telemetry.counters import ModelMetrics

RESOURCES_TAG, CONTEXTS_TAG = "LLM_NODE_RESOURCES", "LLM_NODE_EXECUTION_CONTEXTS"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checked:
    """A graph that is right as far as can be told without its engines; `close` it if it is not served.

    `nodes` are the engine nodes by the side packet that will carry each engine.
    """

    spec: ServableSpec
    graph: Graph
    interface: Interface
    nodes: Mapping[str, Node]
    engine_specs: Mapping[str, EngineSpec]


def model_paths(spec: ServableSpec) -> tuple[str, ...]:
    """Every path that options of the graph name, existing or not; none if the graph cannot be parsed.

    Not resolved: a link that is turned to another model is a change.
    """
    try:
        config = load_graph(spec.graph, spec.base)
    except LoadError:
        return ()
    return tuple(str(config.base / text) for text in sorted(set(config.paths())))


def check(spec: ServableSpec, registry: Registry) -> Checked:
    """Raises LoadError with file, line, node and field where they are known."""
    if fault := spec.fault or spec.wrong_name:
        raise LoadError(fault, file=spec.origin)
    if not spec.graph.is_file():
        raise LoadError(f"{spec.graph} does not exist; {_instead(spec)}", file=spec.origin)
    if spec.subconfig is not None and spec.subconfig.is_file():
        for warning in check_subconfig(spec.subconfig):
            log.warning("%s", warning)
    config = load_graph(spec.graph, spec.base)
    types: dict[str, type] = dict.fromkeys(_packets(config, RESOURCES_TAG), LlmResources)
    types |= dict.fromkeys(_packets(config, CONTEXTS_TAG), object)
    graph = Graph(config, registry.for_directory(spec.base), types)
    for warning in graph.plan.warnings:
        log.warning("%s", warning)
    interface = interface_of(graph)
    nodes = _engine_nodes(graph)
    specs = {packet: engine_spec(node) for packet, node in nodes.items()}
    return Checked(spec, graph, interface, nodes, specs)


def check_graph(directory: Path, registry: Registry) -> tuple[Graph, dict[str, Node]]:
    """The graph of a directory, and its engine nodes by side packet. Raises as `check`."""
    checked = check(ServableSpec.of_directory(directory.name, directory), registry)
    return checked.graph, dict(checked.nodes)


async def load_servable(
    checked: Checked,
    engines: Engines,
    keys: Mapping[str, Key],
    templates: TemplatePool,
    media: Media,
    bodies: Bodies,
    metrics: ModelMetrics,
    limits: Limits,
) -> Servable:
    """`keys` are the engines to take, by side packet. Raises LoadError; nothing is held then."""
    taken: dict[str, EngineClient] = {}
    side: dict[str, Any] = {}
    try:
        for packet, node in checked.nodes.items():
            templates.prepare()  # beside the engine, which tells its template when it is ready
            taken[packet] = await _acquire(node, engines, keys[packet])
            await asyncio.to_thread(_tell_memory, checked.spec.name, taken[packet])
            model = await _model_context(checked.spec.name, node, taken[packet], templates)
            known = fingerprint(taken[packet].spec, taken[packet].facts, _code(checked))
            admission = AdmissionController(taken[packet], metrics.meter, _limits(node, limits))
            side[packet] = LlmResources(admission, model, templates, media, known, bodies)
    except BaseException:
        for engine in taken.values():
            await engines.release(engine)
        checked.graph.close()
        raise
    contexts = dict.fromkeys(_packets(checked.graph.plan.config, CONTEXTS_TAG))
    return Servable(
        checked.spec.name,
        checked.graph,
        taken,
        side | contexts,
        engines.release,
        checked.interface,
        metrics,
        bodies=bodies,
        limits=limits,
    )


def _code(checked: Checked) -> bytes:
    """What else of a graph decides on its answers: its nodes, and the authors' own."""
    nodes = checked.graph.plan.config.message.SerializeToString(deterministic=True)
    calculators = checked.spec.base / CALCULATORS_FILE
    return nodes + (calculators.read_bytes() if calculators.is_file() else b"")


def _instead(spec: ServableSpec) -> str:
    """What is there, if it looks like what OVMS calls a model."""
    plain = spec.base.suffix in (".xml", ".onnx", ".pdmodel", ".tflite", ".pb") or (
        spec.base.is_dir() and any(f.is_dir() and f.name.isdigit() for f in spec.base.iterdir())
    )
    if plain:
        return f"{spec.base} looks like a tensor model, and this server serves graphs"
    return f"a servable is a directory with a {GRAPH_FILE}"


def _packets(config: GraphConfig, tag: str) -> set[str]:
    """Names of the side packets that nodes take under `tag`; OVMS always calls them `llm` and `llm_ctx`."""
    ends = (e.split(":") for n in config.message.node for e in n.input_side_packet)
    return {e[-1] for e in ends if e[0] == tag and len(e) > 1}


def _engine_nodes(graph: Graph) -> dict[str, Node]:
    found: dict[str, Node] = {}
    wanted: dict[str, Node] = {}
    for plan in graph.plan.nodes:
        for port, packet in plan.side_packets:
            if port.tag != RESOURCES_TAG:
                continue
            wanted.setdefault(packet, plan.node)
            if plan.cls.options_type is LLMCalculatorOptions:
                if packet in found:
                    raise plan.node.error(
                        f"node {found[packet].name!r} already fills side packet {packet!r}; name another",
                        "input_side_packet",
                    )
                found[packet] = plan.node
    for packet, node in wanted.items():
        if packet not in found:
            raise node.error(
                f"no node with LLMCalculatorOptions fills side packet {packet!r}", "input_side_packet"
            )
    return found


async def _acquire(node: Node, engines: Engines, key: Key) -> EngineClient:
    """An engine says which option it cannot load with; the node says where that is written."""
    try:
        return await engines.acquire(key)
    except LoadError as error:
        reason = f"{error.file}: {error.reason}" if error.file else error.reason
        raise node.error(reason, error.field or "models_path") from error


def _tell_memory(name: str, engine: EngineClient) -> None:
    """What the model takes and what is left, for the log; a warning if its cache cannot grow as it may."""
    size, left = model_size(engine.spec), memory()
    cache = cache_bytes(engine.spec, size, engine.facts.max_length)
    log.info(
        "%s: weights %d MB, cache %s; the engine holds %d MB, and the %s has %d MB left",
        name, size.weights >> 20, f"{cache >> 20} MB" if cache else "unknown", engine.memory_held >> 20,
        left.limit, left.available >> 20,
    )  # fmt: skip
    if left.available and cache > left.available:
        log.warning(
            "%s: a full cache takes up to %d MB, more than the %s has left", name, cache >> 20, left.limit
        )


def _limits(node: Node, default: Limits) -> Limits:
    """What the graph says of its queue, and the server's own words for the rest."""
    options = check_options(node)
    names = [f.name for f in fields(Limits) if f.name in options.DESCRIPTOR.fields_by_name]
    own = {name: getattr(options, name) for name in names if options.HasField(name)}  # type: ignore[arg-type]
    return replace(default, **own)


async def _model_context(
    name: str, node: Node, engine: EngineClient, templates: TemplatePool
) -> ModelContext:
    options, facts = check_options(node), engine.facts
    template = await chat_template(
        node,
        options,
        facts.chat_template,
        facts.tool_template,
        templates,
        bos_token=facts.bos_token,
        eos_token=facts.eos_token,
        pad_token=facts.pad_token,
    )
    parsers = parser_choice(options, template)
    log.info("%s: %s; tools reach it by: %s", name, parsers, (template and template.tool_prompt) or "nothing")
    ends = await engine.detokenize([[id_] for id_ in facts.eos_token_ids]) if facts.eos_token_ids else []
    return ModelContext(
        template=template,
        max_length=facts.max_length,
        max_tokens_limit=options.max_tokens_limit if options.HasField("max_tokens_limit") else None,
        best_of_limit=options.best_of_limit,
        decoding=engine.spec.decoding,
        defaults=facts.generation_config,
        parsers=parsers,
        vision=(
            Vision(
                facts.image_markers,
                exactly_one=engine.spec.device == ONE_AT_A_TIME,
                tokens=facts.image_tokens,
                added=facts.added_tokens,
            )
            if facts.vision
            else None
        ),
        guide_tools=options.enable_tool_guided_generation,
        end_tokens=tuple(dict.fromkeys(text for text in (*ends, facts.eos_token) if text)),
    )


async def chat_template(
    node: Node,
    options: LLMCalculatorOptions,
    source: str | None,
    tool_source: str | None,
    templates: TemplatePool,
    *,
    bos_token: str = "",
    eos_token: str = "",
    pad_token: str = "",
) -> ChatTemplate | None:
    """The graph's own, else the model's (`source`), compiled. Raises LoadError."""
    own = own_template(node, options)
    if not (text := own or source):
        return None
    template = ChatTemplate(
        text,
        tool_source if own is None else None,
        bos_token=bos_token,
        eos_token=eos_token,
        pad_token=pad_token,
        generic_tools=options.generic_tool_prompt,
    )
    try:
        return await templates.load(template)
    except LoadError as error:
        where = (
            ("chat_template_path", options.chat_template_path) if own else ("models_path", "the model's own")
        )
        raise node.error(f"{where[1]}: {error.reason}", where[0]) from error


def parser_choice(options: LLMCalculatorOptions, template: ChatTemplate | None) -> ParserChoice:
    """What the graph says, else what the template shows."""
    generic = template is not None and template.tool_prompt == "generic"
    return choose(
        options.tool_parser or (generic_tools.PARSER if generic else ""),
        options.reasoning_parser,
        template.text if template is not None else None,
        model="/".join(Path(options.models_path).parts[-2:]),
    )
