"""The loader as its users see it: what GraphConfig offers, and what a LoadError tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from ovserve.errors import LoadError
from ovserve.graph.config import load_graph, parse_graph
from ovserve.protos.llm_pb2 import LLMCalculatorOptions
from ovserve.protos.options_pb2 import RerankCalculatorOVOptions

LLM = "type.googleapis.com/mediapipe.LLMCalculatorOptions"
RERANK = "type.googleapis.com/mediapipe.RerankCalculatorOVOptions"
GRAPH = f"""\
input_stream: "IN:a"
output_stream: ["OUT:c",
                "D:d"]
node {{
  name: "first"
  calculator: "One"
  input_stream: "IN:a"
  output_stream: "b"
}}
node: [
  {{ calculator: "Two" input_stream: "b" output_stream: 'c' }},
  {{
    calculator: "Three"
    input_stream_info {{ tag_index: "LOOPBACK:0" back_edge: true }}
    node_options {{ [{LLM}] {{ models_path: "m" max_num_seqs: 3 }} }}
    node_options {{ [{RERANK}] {{ models_path: "r" }} }}
  }}
]
"""


def refused(text: str | bytes, file: str = "g.pbtxt") -> LoadError:
    with pytest.raises(LoadError) as caught:
        parse_graph(text, file)
    assert caught.value.file == file
    return caught.value


def test_lines_of_nodes_and_fields() -> None:
    config = parse_graph(GRAPH)
    assert [config.line_of_node(i) for i in range(4)] == [4, 10, 10, 0]
    assert config.place_of(0, "input_stream", "IN:a")[0] == 7
    assert config.place_of(1, "output_stream", "c")[0] == 11
    assert config.place_of(2, "tag_index", "LOOPBACK:0")[0] == 14
    assert config.place_of(2, "node_options")[0] == 15
    assert config.place_of(2, "max_num_seqs", "3")[0] == 15


def test_lines_of_the_graph_itself() -> None:
    config = parse_graph(GRAPH)
    assert config.place_of(None, "input_stream", "IN:a")[0] == 1
    assert config.place_of(None, "output_stream", "D:d")[0] == 3


@pytest.mark.parametrize(
    ("i", "name", "text"), [(0, "input_stream", "x"), (0, "executor", None), (9, "name", None)]
)
def test_unknown_place_is_line_zero(i: int, name: str, text: str | None) -> None:
    assert parse_graph(GRAPH).place_of(i, name, text)[0] == 0


def test_options_by_type() -> None:
    config = parse_graph(GRAPH)
    options = config.options(2, LLMCalculatorOptions)
    assert options is not None
    assert (options.models_path, options.max_num_seqs, options.best_of_limit) == ("m", 3, 20)
    assert config.options(0, LLMCalculatorOptions) is None
    assert config.option_types(0) == []
    assert config.option_types(2) == ["mediapipe.LLMCalculatorOptions", "mediapipe.RerankCalculatorOVOptions"]


def test_options_in_the_legacy_form() -> None:
    config = parse_graph('node { options { [mediapipe.LLMCalculatorOptions.ext] { models_path: "x" } } }')
    options = config.options(0, LLMCalculatorOptions)
    assert options is not None
    assert options.models_path == "x"
    assert config.option_types(0) == ["mediapipe.LLMCalculatorOptions"]
    assert config.options(0, RerankCalculatorOVOptions) is None


def test_options_in_an_unexpanded_any() -> None:
    config = parse_graph(f'node {{ node_options {{ type_url: "{LLM}" value: "\\n\\003abc" }} }}')
    options = config.options(0, LLMCalculatorOptions)
    assert options is not None
    assert options.models_path == "abc"


@pytest.mark.parametrize(
    "second",
    ["options { [mediapipe.LLMCalculatorOptions.ext] {} }", f"node_options {{ [{LLM}] {{}} }}"],
)
def test_the_same_options_twice_are_refused(second: str) -> None:
    config = parse_graph(f'node {{ name: "n"\n node_options {{ [{LLM}] {{}} }}\n {second} }}', "g.pbtxt")
    with pytest.raises(LoadError, match=r"LLMCalculatorOptions is given 2 times") as caught:
        config.options(0, LLMCalculatorOptions)
    assert (caught.value.line, caught.value.node, caught.value.field) == (2, "n", "node_options")


def test_empty_any_is_no_option() -> None:
    assert parse_graph("node { node_options {} }").option_types(0) == []


def test_error_names_everything() -> None:
    error = refused(f'node {{\n name: "n"\n node_options {{ [{LLM}] {{\n  cache_size: -1\n }} }} }}')
    assert (error.line, error.node, error.field) == (4, "n", "cache_size")
    assert str(error) == "g.pbtxt:4: node 'n': cache_size: Value out of range: -1 (at 4:15)"


def test_unnamed_node_goes_by_its_calculator() -> None:
    assert refused('node { calculator: "One" bogus: 1 }').node == "One"


@pytest.mark.parametrize(
    "text",
    [
        "node {" * 5000,
        "node <" * 70,
        "options { [a] " * 5000,
        "[" * 5000,
        f"node {{ node_options {{ [{LLM}] " * 99,
    ],
)
def test_absurd_nesting_is_refused(text: str) -> None:
    refused(text)


def test_not_utf8_is_refused_with_its_line() -> None:
    error = refused(b'package: "x"\npackage: "\xff"')
    assert error.line == 2
    assert "UTF-8" in error.reason
    assert refused('package: "\ud800"').line == 1
    assert refused("\ud800: 1").line == 1


def test_lone_bad_escape_is_refused_at_its_own_line() -> None:
    error = refused('package: "\\xff"\nnode {}')
    assert (error.line, error.field) == (1, "package")


def test_load_graph_reads_the_file(tmp_path: Path) -> None:
    path = tmp_path / "graph.pbtxt"
    path.write_bytes(b'\xef\xbb\xbfnode { name: "\xc3\xa4" }\r\n')
    config = load_graph(path)
    assert config.message.node[0].name == "ä"
    assert config.file == str(path)


def test_load_graph_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="cannot be read") as caught:
        load_graph(tmp_path / "none.pbtxt")
    assert caught.value.file == str(tmp_path / "none.pbtxt")
