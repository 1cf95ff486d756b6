"""The specification of the first engine, found out before the calculators are imported.

To check a graph the server imports all calculators and their APIs, 0.4 s of processor time, and an engine
process with its libraries imported would wait for that. What it should load stands in the options of one
node. So they are read first, and the engine loads while the server imports the rest and checks the graph.
If the check finds that another engine is needed, or none, the process is ended.
"""

from __future__ import annotations

import logging

from ovserve.engine.protocol.specs import GenerationSpec, with_cache
from ovserve.errors import OvserveError
from ovserve.graph.config import load_graph, parse_graph
from ovserve.graph.node import Node
from ovserve.kinds.text.engine_spec import engine_options
from ovserve.protos.llm_pb2 import LLMCalculatorOptions
from ovserve.server.source import Served
from ovserve.serving.config.file import SingleGraph


def first_spec(served: Served, cache: str = "") -> GenerationSpec | None:
    """Return what the first language model of the only graph asks for. `cache`: for compiled models.

    None: there are several graphs, no such node, a file to convert, or a mistake, which the check of the
    graph reports.
    """
    if not isinstance(served.repository, SingleGraph):
        return None
    logging.disable()  # the check of the graph repeats what is logged here
    try:
        spec = _spec_of(served.repository)
        return None if spec is None else with_cache(spec, cache)
    except OvserveError:
        return None
    finally:
        logging.disable(logging.NOTSET)


def _spec_of(repository: SingleGraph) -> GenerationSpec | None:
    graph = repository.spec
    if graph.model is not None or not (graph.text or graph.graph.is_file()):
        return None
    config = (
        parse_graph(graph.text, str(graph.graph), graph.base)
        if graph.text
        else load_graph(graph.graph, graph.base)
    )
    for position, node in enumerate(config.message.node):
        options = config.options(position, LLMCalculatorOptions)
        if options is not None:
            spec = engine_options(Node(config, position, node.name, node.calculator), options).spec
            return None if spec.converts else spec
    return None
