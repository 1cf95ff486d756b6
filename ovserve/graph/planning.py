"""Check a parsed graph and lay it out for the scheduler: every wiring fault is rejected here, at load.

A fault names file, line, node and field. MediaPipe rejects most of these too. Two are rejected only here: a
back edge that shares a sync set, because by rule 1 of the scheduler such a node would wait for itself; and
handler options that name a tag the node does not have, on which MediaPipe aborts the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ovserve.errors import LoadError
from ovserve.graph.config import GraphConfig
from ovserve.graph.node import Endpoint, split_endpoints
from ovserve.graph.plan import GraphPlan, NodePlan
from ovserve.graph.plan_checks import Faults, check_cycles, check_side_packets, check_streams
from ovserve.graph.plan_node import canonical_name, plan_node
from ovserve.graph.registry import Registry
from ovserve.graph.runtime.executors import plan_executors

DEFAULT_QUEUE_SIZE = 100  # MediaPipe's max_queue_size


def plan_graph(config: GraphConfig, registry: Registry, provided: Mapping[str, type]) -> GraphPlan:
    """Check everything that can be known before a packet flows. `provided`: side packets the host gives."""
    message = config.message
    _refuse_unsupported(config)
    if not message.node:
        raise LoadError("the graph has no node", file=config.file)
    executors = plan_executors(config)
    inputs = _graph_endpoints(config, "input_stream", message.input_stream)
    outputs = _graph_endpoints(config, "output_stream", message.output_stream)
    nodes: list[NodePlan] = []
    faults = Faults()
    for i in range(len(message.node)):
        try:
            nodes.append(plan_node(config, i, registry, executors))
        except LoadError as error:
            faults.add_node(error, message.node[i])
    warnings = [*config.warnings, *_without_effect(config), *_renamed(config)]
    check_streams(config, nodes, inputs, outputs, warnings, faults)
    side = check_side_packets(config, nodes, provided, faults)
    faults.end()
    check_cycles(nodes)
    size = message.max_queue_size if message.HasField("max_queue_size") else DEFAULT_QUEUE_SIZE
    if size == 0 or size < -1:
        raise LoadError(
            f"{size} is neither -1 (unlimited) nor a size", file=config.file, field="max_queue_size"
        )
    return GraphPlan(
        config, tuple(nodes), inputs, outputs, side, executors, size, message.report_deadlock, tuple(warnings)
    )


def _refuse_unsupported(config: GraphConfig) -> None:
    message = config.message
    for name in (
        "packet_factory",
        "packet_generator",
        "status_handler",
        "graph_options",
        "output_side_packet",
    ):
        if getattr(message, name):
            raise LoadError("not supported by this server", file=config.file, field=name)
    if message.HasField("output_stream_handler"):
        handler = message.output_stream_handler.output_stream_handler
        if handler != "InOrderOutputStreamHandler":
            raise LoadError(
                f"{handler!r}: only InOrderOutputStreamHandler",
                file=config.file,
                field="output_stream_handler",
            )


def _without_effect(config: GraphConfig) -> list[str]:
    """MediaPipe fields that mean nothing here: a graph that has them works, with a warning."""
    message = config.message
    found = [
        (0, name) for name in ("package", "type", "profiler_config", "options") if message.HasField(name)
    ]
    for i, node in enumerate(message.node):
        found += [
            (config.line_of_node(i), name)
            for name in ("source_layer", "buffer_size_hint", "profiler_config")
            if node.HasField(name)
        ]
    if config.queue_size is not None:
        found.append((0, "OVMS_GRAPH_QUEUE_MAX_SIZE (graphs are not pooled, a run costs microseconds)"))
    return [
        f"{config.file}{f':{line}' if line else ''}: {name} has no effect in this server"
        for line, name in found
    ]


def _renamed(config: GraphConfig) -> list[str]:
    """Return a warning for each node whose name another node has: logs and metrics show it with a number."""
    names = [node.name for node in config.message.node]
    return [
        f"{config.file}:{config.line_of_node(i)}: node {name!r}: another node has this name, so it becomes "
        f"{canonical_name(config, i)!r}"
        for i, name in enumerate(names)
        if name and name in names[:i]
    ]


def _graph_endpoints(config: GraphConfig, field_name: str, texts: Iterable[str]) -> tuple[Endpoint, ...]:
    endpoints, wrong = split_endpoints(list(texts))
    if wrong is None:
        names = [e.name for e in endpoints]
        twice = next((n for n in names if names.count(n) > 1), None)
        wrong = f"stream {twice!r} is declared twice" if twice else None
    if wrong:
        raise LoadError(wrong, file=config.file, field=field_name)
    return tuple(endpoints)
