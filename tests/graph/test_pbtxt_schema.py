"""Mending of old spellings, and the help given where protobuf has none."""

from __future__ import annotations

import pytest

from ovserve.errors import LoadError
from ovserve.graph.config import parse_graph
from ovserve.graph.pbtxt.schema import known_options
from ovserve.protos.llm_pb2 import LLMCalculatorOptions
from ovserve.protos.options_pb2 import EmbeddingsCalculatorOVOptions

NODE = """\
node {
  name: "n"
  calculator: "%s"
  node_options {
    [type.googleapis.com/mediapipe.%s] {
%s
} } }"""


def refused(text: str) -> LoadError:
    with pytest.raises(LoadError) as caught:
        parse_graph(text, "g.pbtxt")
    return caught.value


def test_byte_order_mark_is_dropped() -> None:
    assert parse_graph("\ufeffpackage: 'x'").message.package == "x"
    assert parse_graph(b"\xef\xbb\xbfpackage: 'x'").message.package == "x"


@pytest.mark.parametrize(
    ("body", "field", "release"),
    [
        ("block_size: 32, device: 'x'", "block_size", "2025.0"),
        ("device: 'x', block_size: 32", "block_size", "2025.0"),
        ("block_size\n:\n32\n;device: 'x'", "block_size", "2025.0"),
        ("response_parser: 'a' \"b\" device: 'x'", "response_parser", "2025.3"),
    ],
)
def test_removed_options_are_dropped_with_a_warning(body: str, field: str, release: str) -> None:
    config = parse_graph(NODE % ("HttpLLMCalculator", "LLMCalculatorOptions", body), "g.pbtxt")
    options = config.options(0, LLMCalculatorOptions)
    assert options is not None
    assert options.device == "x"
    (warning,) = config.warnings
    assert warning.startswith(f"g.pbtxt:6: node 'n': {field}: ")
    assert release in warning


def test_dropping_keeps_the_place_of_later_mistakes() -> None:
    error = refused(NODE % ("HttpLLMCalculator", "LLMCalculatorOptions", "block_size:\n32, cache_size: -1"))
    assert error.line == 7
    assert "(at 7:17)" in error.reason


def embeddings(options: str) -> str:
    return NODE % ("EmbeddingsCalculatorOV", "EmbeddingsCalculatorOVOptions", f"{options}\nmodels_path: 'm'")


@pytest.mark.parametrize(
    ("value", "pooling"), [("true", "MEAN"), ("1", "MEAN"), ("False", "CLS"), ("\n\nt", "MEAN")]
)
def test_mean_pooling_becomes_pooling(value: str, pooling: str) -> None:
    config = parse_graph(embeddings(f"mean_pooling:{value}"))
    options = config.options(0, EmbeddingsCalculatorOVOptions)
    assert options is not None
    assert options.pooling == EmbeddingsCalculatorOVOptions.Pooling.Value(pooling)
    assert "2025.3" in config.warnings[0]


@pytest.mark.parametrize("value", ["TRUE", '"true"', "{}"])
def test_mean_pooling_of_no_bool_is_refused(value: str) -> None:
    error = refused(embeddings(f"mean_pooling: {value}"))
    assert (error.line, error.node, error.field) == (6, "n", "mean_pooling")


@pytest.mark.parametrize("name", ["EmbeddingsCalculator", "RerankCalculator"])
def test_old_calculators_are_told_the_modern_spelling(name: str) -> None:
    for error in (
        refused(f'node {{\n name: "n"\n calculator: "{name}"\n input_side_packet: "SESSION:s" }}'),
        refused(f'node {{ name: "n"\n\nnode_options {{ [a/mediapipe.{name}Options] {{}} }} }}'),
    ):
        assert (error.line, error.node) == (3, "n")
        assert f'"{name}OV"' in error.reason
        assert f"mediapipe.{name}OVOptions" in error.reason


def test_misspelt_type_is_told_the_nearest() -> None:
    error = refused(NODE % ("HttpLLMCalculator", "LLMCalculatorOption", ""))
    assert (error.line, error.node) == (5, "n")
    assert "unknown option type mediapipe.LLMCalculatorOption; " in error.reason
    assert "did you mean mediapipe.LLMCalculatorOptions?" in error.reason
    assert all(name in error.reason for name in known_options())


def test_type_without_its_package_is_told_the_nearest() -> None:
    error = refused("node { node_options { [type.googleapis.com/llmCalculatorOptions] {} } }")
    assert "did you mean mediapipe.LLMCalculatorOptions?" in error.reason


@pytest.mark.parametrize("name", ["ImageTransformationCalculator", "ConstantSidePacketCalculator"])
@pytest.mark.parametrize(
    "form", ["node_options {{ [type.googleapis.com/mediapipe.{}Options]: {{ a {{ b: 1 }} }} }}",
             "options {{ [mediapipe.{}Options.ext] {{ a: 1 }} }}"]
)  # fmt: skip
def test_stock_calculators_are_not_available(name: str, form: str) -> None:
    error = refused(f'node {{ calculator: "{name}"\n{form.format(name)} }}')
    assert error.line == 2
    assert f"calculator {name} is not available in this server" in error.reason
    assert "C++ calculators are not here: write it in Python" in error.reason


def test_known_options_are_calculators_options_only() -> None:
    assert "mediapipe.LLMCalculatorOptions" in known_options()
    assert all(name.startswith("mediapipe.") and name.endswith("Options") for name in known_options())
    assert not any("Handler" in name for name in known_options())
