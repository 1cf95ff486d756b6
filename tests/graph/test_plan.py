"""Every wiring fault is refused at load, naming file, line, node and field (ovserve.graph.planning, handlers)."""

from __future__ import annotations

import pytest

from ovserve.errors import LoadError
from ovserve.graph import Registry
from ovserve.graph.config import parse_graph
from ovserve.graph.graph import Graph
from tests.graph.calculators import REGISTRY

HEAD = 'input_stream: "a"\noutput_stream: "b"\n'
LOOP = """
node { name: "n" calculator: "Countdown" input_stream: "IN:a" input_stream: "LOOPBACK:l"
       output_stream: "OUT:b" output_stream: "LOOPBACK:l" %s }
"""
BACK = 'input_stream_info { tag_index: "LOOPBACK:0" back_edge: true }'
SYNC = """input_stream_handler { input_stream_handler: "SyncSetInputStreamHandler" options {
          [mediapipe.SyncSetInputStreamHandlerOptions.ext] { sync_set { tag_index: "%s" } } } }"""
EXECUTOR = "executor { name: '%s' type: '%s' }"
GOOD = 'node { calculator: "Double" input_stream: "IN:a" output_stream: "OUT:b" }'

REFUSED = {
    "no node": (HEAD, ["graph.pbtxt", "no node"]),
    "unknown calculator": (
        HEAD + 'node { name: "n"\n calculator: "Dobule"\n input_stream: "IN:a" output_stream: "OUT:b" }',
        ["graph.pbtxt:4", "'n'", "calculator", "'Dobule'", "did you mean Double?"],
    ),
    "undeclared tag": (
        HEAD + 'node { name: "n" calculator: "Double"\n\n input_stream: "INN:a" output_stream: "OUT:b" }',
        ["graph.pbtxt:5", "'n'", "input_stream", "'INN:a'", "did you mean IN?"],
    ),
    "required port missing": (
        HEAD + 'node { name: "n" calculator: "Double" output_stream: "OUT:b" }',
        ["graph.pbtxt:3", "'n'", "input_stream", "needs IN"],
    ),
    "two producers": (
        HEAD + GOOD + '\nnode { name: "n" calculator: "Double" input_stream: "IN:a" output_stream: "OUT:b" }',
        ["graph.pbtxt:4", "'n'", "output_stream", "'b'", "already produced by node 'Double'"],
    ),
    "produced by the graph and a node": (
        'input_stream: "a" input_stream: "b" output_stream: "b" ' + GOOD,
        ["'Double'", "already produced by the graph"],
    ),
    "no producer": (
        HEAD + 'node { name: "n" calculator: "Double" input_stream: "IN:aa" output_stream: "OUT:b" }',
        ["graph.pbtxt:3", "'n'", "input_stream", "no node produces stream 'aa'", "did you mean 'a'?"],
    ),
    "graph output without producer": (
        'input_stream: "a" output_stream: "x" ' + GOOD,
        ["output_stream", "no node produces stream 'x'"],
    ),
    "cycle": (
        HEAD
        + 'node { name: "one" calculator: "Join" input_stream: "a" input_stream: "y" output_stream: "OUT:x" }\n'
        + 'node { name: "two" calculator: "Slow" input_stream: "IN:x" output_stream: "OUT:y"'
        + ' input_side_packet: "TURNS:t" }\n'
        + 'node { calculator: "Slow" input_stream: "IN:y" output_stream: "OUT:b" input_side_packet: "TURNS:t" }',
        ["cycle without a back edge", "one", "two", "-(x)-", "-(y)-", "back_edge: true"],
    ),
    "cycle of one node": (HEAD + LOOP % "", ["'n'", "cycle without a back edge", "-(l)-"]),
    "handler naming a missing tag": (
        HEAD + LOOP % (BACK + SYNC % "LOOPBACKK:0"),
        ["graph.pbtxt:", "'n'", "input_stream_handler", "'LOOPBACKK:0'"],
    ),
    "info naming a missing tag": (
        HEAD + LOOP % 'input_stream_info { tag_index: "LOOP" back_edge: true }',
        ["'n'", "input_stream_info", "'LOOP'"],
    ),
    "info twice": (HEAD + LOOP % (BACK + BACK + SYNC % "LOOPBACK"), ["'n'", "input_stream_info", "twice"]),
    "back edge sharing a sync set": (
        HEAD + LOOP % BACK,
        ["'n'", "shares a sync set", "SyncSetInputStreamHandler"],
    ),
    "unknown handler": (
        HEAD + LOOP % (BACK + 'input_stream_handler { input_stream_handler: "MuxInputStreamHandler" }'),
        ["'n'", "input_stream_handler", "'MuxInputStreamHandler'", "ImmediateInputStreamHandler"],
    ),
    "duplicate tag": (
        HEAD + 'node { name: "n" calculator: "Double" input_stream: "IN:a" input_stream: "IN:a"'
        ' output_stream: "OUT:b" }',
        ["'n'", "input_stream", "twice"],
    ),
    "index with a gap": (
        HEAD + 'node { name: "n" calculator: "Join" input_stream: "X:1:a" output_stream: "OUT:b" }',
        ["'n'", "index 1 without index 0"],
    ),
    "bad stream name": (
        HEAD + 'node { name: "n" calculator: "Double" input_stream: "IN:A" output_stream: "OUT:b" }',
        ["'n'", "input_stream", "'IN:A'", "TAG:index:name"],
    ),
    "two streams of one name": (
        'input_stream: "X:a" input_stream: "Y:a" ' + GOOD,
        ["input_stream", "'a'", "twice"],
    ),
    "packet types that cannot meet": (
        'input_stream: "a" output_stream: "b"\n'
        'node { calculator: "Blocking" input_stream: "IN:a" output_stream: "OUT:s" }\n'
        'node { name: "n" calculator: "Double" input_stream: "IN:s" output_stream: "OUT:b" }',
        ["graph.pbtxt:3", "'n'", "takes int", "produces str"],
    ),
    "undeclared executor": (
        HEAD
        + 'node { name: "n" calculator: "Double" input_stream: "IN:a" output_stream: "OUT:b" executor: "x" }',
        ["'n'", "executor", "'x'", "not declared"],
    ),
    "reserved executor": (HEAD + GOOD + EXECUTOR % ("gpu", ""), ["executor", "'gpu'", "reserved"]),
    "executor twice": (HEAD + GOOD + EXECUTOR % ("x", "") + EXECUTOR % ("x", ""), ["executor", "twice"]),
    "executor type": (HEAD + GOOD + EXECUTOR % ("x", "Gpu"), ["executor", "'Gpu'", "ThreadPoolExecutor"]),
    "default executor and num_threads": (
        HEAD + GOOD + "executor {} num_threads: 2",
        ["executor", "num_threads"],
    ),
    "missing side packet": (
        HEAD + 'node { name: "n" calculator: "Slow" input_stream: "IN:a" output_stream: "OUT:b"'
        ' input_side_packet: "TURNS:nope" }',
        ["'n'", "input_side_packet", "'nope'"],
    ),
    "side packets in a circle": (
        'output_stream: "b" '
        'node { name: "one" calculator: "MakeLimit" input_side_packet: "BASE:x" output_side_packet: "LIMIT:y" }'
        'node { name: "two" calculator: "MakeLimit" input_side_packet: "BASE:y" output_side_packet: "LIMIT:x" }'
        'node { calculator: "Source" input_side_packet: "LIMIT:x" output_stream: "OUT:b" }',
        ["input_side_packet", "cycle", "one, two"],
    ),
    "options the calculator does not take": (
        HEAD + 'node { name: "n" calculator: "Double" input_stream: "IN:a" output_stream: "OUT:b" '
        "node_options { [type.googleapis.com/mediapipe.LLMCalculatorOptions] { models_path: 'x' } } }",
        ["'n'", "node_options", "takes no options", "mediapipe.LLMCalculatorOptions"],
    ),
    "max_in_flight": (
        HEAD
        + 'node { name: "n" calculator: "Double" input_stream: "IN:a" output_stream: "OUT:b" max_in_flight: 4 }',
        ["'n'", "max_in_flight", "not supported"],
    ),
    "packet_generator": (HEAD + GOOD + 'packet_generator { packet_generator: "X" }', ["packet_generator"]),
    "queue size": (HEAD + GOOD + "max_queue_size: 0", ["max_queue_size", "0"]),
    "output handler": (
        HEAD + GOOD + 'output_stream_handler { output_stream_handler: "X" }',
        ["output_stream_handler", "InOrderOutputStreamHandler"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_at_load(name: str) -> None:
    text, expected = REFUSED[name]
    with pytest.raises(LoadError) as caught:
        Graph(parse_graph(text), REGISTRY, {"t": object})
    for piece in expected:
        assert piece in str(caught.value)


def test_a_stream_nobody_reads_is_a_warning() -> None:
    graph = Graph(parse_graph('input_stream: "a" input_stream: "z" output_stream: "b" ' + GOOD), REGISTRY)
    assert any("'z'" in w for w in graph.plan.warnings)


def test_a_graph_wide_handler_may_name_tags_that_only_some_nodes_have() -> None:
    text = HEAD + LOOP % BACK + SYNC % "LOOPBACK"
    sets = Graph(parse_graph(text), REGISTRY).plan.nodes[0].sync_sets
    assert sorted(sets) == [(0,), (1,)]


def test_nodes_without_a_name_get_mediapipe_s() -> None:
    text = HEAD + 'node { calculator: "Double" input_stream: "IN:a" output_stream: "OUT:c" }' + GOOD
    names = [n.node.name for n in Graph(parse_graph(text), REGISTRY).plan.nodes]
    assert names == ["Double", "Double_1"]


def test_registry_refuses_one_name_for_two_classes() -> None:
    from tests.graph.calculators import Double

    impostor = type("Impostor", (Double,), {"__calculator_name__": "Double"})
    registry = Registry()
    registry.add(Double)
    registry.add(Double)
    with pytest.raises(LoadError, match=r"'Double' is defined twice: by Double .* and by Impostor"):
        registry.add(impostor)
