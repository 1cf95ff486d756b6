"""A graph directory to a Servable: check the graph, start its engine, make the side packets.

Called by the manager. The graph is checked whole before any engine starts: a wrong tag must not cost a model
load.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from ovserve.calculators.llm_options import check_options, engine_spec
from ovserve.calculators.resources import LlmResources
from ovserve.engine.client import EngineClient
from ovserve.errors import LoadError
from ovserve.graph import Node, Registry
from ovserve.graph.config import GraphConfig, load_graph
from ovserve.graph.graph import Graph
from ovserve.llm.chat_template import ChatTemplate
from ovserve.llm.model import ModelContext
from ovserve.protos.llm_pb2 import LLMCalculatorOptions
from ovserve.serving.servable import REQUEST_TAG, RESPONSE_TAG, Servable
from ovserve.templating.pool import TemplatePool

GRAPH_FILE = "graph.pbtxt"
RESOURCES_TAG, CONTEXTS_TAG = "LLM_NODE_RESOURCES", "LLM_NODE_EXECUTION_CONTEXTS"

log = logging.getLogger(__name__)


async def load_servable(
    name: str, directory: Path, registry: Registry, templates: TemplatePool, *, ready_timeout: float
) -> Servable:
    """Raises LoadError with file, line, node and field where they are known. Timeouts are in seconds."""
    graph, engine_nodes = check_graph(directory, registry)
    engines: dict[str, EngineClient] = {}
    side: dict[str, Any] = {}
    try:
        for packet, node in engine_nodes.items():
            engine = await EngineClient.start(engine_spec(node), ready_timeout=ready_timeout)
            engines[packet] = engine
            model = await _model_context(node, engine, templates)
            side[packet] = LlmResources(engine, model, templates)
    except BaseException:
        for engine in engines.values():
            await engine.stop()
        graph.close()
        raise
    return Servable(name, graph, engines, side | dict.fromkeys(_packets(graph.plan.config, CONTEXTS_TAG)))


def check_graph(directory: Path, registry: Registry) -> tuple[Graph, dict[str, Node]]:
    """The graph, and its engine nodes by the side packet that will carry each engine."""
    path = directory / GRAPH_FILE
    if not path.is_file():
        raise LoadError(f"{path} does not exist; model_path must be a directory with a {GRAPH_FILE}")
    config = load_graph(path)
    types: dict[str, type] = dict.fromkeys(_packets(config, RESOURCES_TAG), LlmResources)
    types |= dict.fromkeys(_packets(config, CONTEXTS_TAG), object)
    graph = Graph(config, registry.for_directory(directory), types)
    for warning in graph.plan.warnings:
        log.warning("%s", warning)
    for ends, tag, field in (
        (graph.plan.inputs, REQUEST_TAG, "input_stream"),
        (graph.plan.outputs, RESPONSE_TAG, "output_stream"),
    ):
        if [e.tag for e in ends].count(tag) != 1:
            raise LoadError(f"expected exactly one {tag} stream", file=config.file, field=field)
    return graph, _engine_nodes(graph)


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


async def _model_context(node: Node, engine: EngineClient, templates: TemplatePool) -> ModelContext:
    options, facts = check_options(node), engine.facts
    template = None
    if facts.chat_template:
        template = await templates.load(
            ChatTemplate(
                facts.chat_template,
                facts.tool_template,
                bos_token=facts.bos_token,
                eos_token=facts.eos_token,
                pad_token=facts.pad_token,
            )
        )
    return ModelContext(
        template=template,
        max_length=facts.max_length,
        max_tokens_limit=options.max_tokens_limit if options.HasField("max_tokens_limit") else None,
        best_of_limit=options.best_of_limit,
        decoding=engine.spec.decoding,
        defaults=facts.generation_config,
    )
