"""The graph that pull writes: OVMS's text_generation graph for the same flags, and never over somebody's changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from ovserve.errors import InvalidArgument, LoadError
from ovserve.graph.config import parse_graph
from ovserve.protos.llm_pb2 import LLMCalculatorOptions
from ovserve.pull.graph_text import OPTIONS, graph_text
from ovserve.pull.run import Wanted, pull
from tests.conftest import ROOT
from tests.pull import tiny_gguf

DEFAULTS = {
    "models_path": "./",
    "device": "CPU",
    "max_num_seqs": 256,
    "cache_size": 0,
    "enable_prefix_caching": True,
    "plugin_config": "{ }",
}


def quiet(_: str) -> None:
    pass


def options(text: str) -> dict[str, Any]:
    config = parse_graph(text)
    assert not config.warnings
    found = config.options(0, LLMCalculatorOptions)
    assert found is not None
    return {f.name: value for f, value in found.ListFields()} | {"cache_size": found.cache_size}


def test_without_flags_it_has_ovms_defaults() -> None:
    assert options(graph_text({}, "./")) == DEFAULTS


def test_all_but_the_options_is_the_one_node_of_ovms() -> None:
    ours = parse_graph(graph_text({}, "x", heading="two\nlines")).message
    theirs = parse_graph((ROOT / "graphs/single_node/graph.pbtxt").read_text()).message
    for message in (ours, theirs):
        del message.node[0].node_options[:]
    assert MessageToDict(ours) == MessageToDict(theirs)


def test_explicit_is_the_graph_that_ships_for_the_default_model() -> None:
    ours = parse_graph(graph_text({}, "x", explicit=True)).message
    theirs = parse_graph((ROOT / "graphs/smollm2/graph.pbtxt").read_text()).message
    for message in (ours, theirs):
        del message.node[2].node_options[:]
    assert MessageToDict(ours) == MessageToDict(theirs)


def test_explicit_has_the_same_options() -> None:
    given = {"max_num_seqs": 3, "plugin_config": '{"A": "1"}'}
    one, five = (parse_graph(graph_text(given, "./", explicit=each)) for each in (False, True))
    assert one.options(0, LLMCalculatorOptions) == five.options(2, LLMCalculatorOptions)


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        ({"target_device": "GPU.1"}, {"device": "GPU.1"}),
        (
            {"max_num_seqs": 4, "max_num_batched_tokens": 64},
            {"max_num_seqs": 4, "max_num_batched_tokens": 64},
        ),
        ({"enable_prefix_caching": False}, {"enable_prefix_caching": False}),
        ({"dynamic_split_fuse": False}, {"dynamic_split_fuse": False}),
        ({"pipeline_type": "LM"}, {"pipeline_type": LLMCalculatorOptions.LM}),
        ({"engine": "paged"}, {"engine": "paged"}),
        (
            {"tool_parser": "hermes3", "reasoning_parser": "qwen3", "enable_tool_guided_generation": True},
            {"tool_parser": "hermes3", "reasoning_parser": "qwen3", "enable_tool_guided_generation": True},
        ),
        (
            {"cache_size": 2, "cache_interval_multiplier": 3},
            {"cache_size": 2, "cache_interval_multiplier": 3},
        ),
        (
            {
                "kv_cache_precision": "u8",
                "max_prompt_len": 2048,
                "model_distribution_policy": "TENSOR_PARALLEL",
            },
            {
                "plugin_config": '{"MAX_PROMPT_LEN": 2048, "KV_CACHE_PRECISION": "u8", '
                '"MODEL_DISTRIBUTION_POLICY": "TENSOR_PARALLEL"}'
            },
        ),
        (
            {"plugin_config": '{"x": "it\'s \\\\ \\"so\\""}', "kv_cache_precision": "u8"},
            {"plugin_config": '{"x": "it\'s \\\\ \\"so\\"", "KV_CACHE_PRECISION": "u8"}'},
        ),
    ],
)
def test_flags_become_fields(flags: dict[str, Any], fields: dict[str, Any]) -> None:
    assert options(graph_text(flags, "./")) == DEFAULTS | fields


def test_every_option_becomes_a_field() -> None:
    known = LLMCalculatorOptions.DESCRIPTOR.fields_by_name
    for option in OPTIONS:
        assert option.property or (option.field or option.name) in known, option.name


def test_paths_are_escaped() -> None:
    path = "C:\\mod\"els'/ä\n"
    made = options(graph_text({}, path, path))
    assert (made["models_path"], made["draft_models_path"]) == (path, path)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"plugin_config": "[]"}, "expected a JSON object"),
        ({"plugin_config": "{"}, "expected a JSON object"),
        (
            {"plugin_config": '{"MAX_PROMPT_LEN": 1}', "max_prompt_len": 2},
            "MAX_PROMPT_LEN is in plugin_config too",
        ),
    ],
)
def test_what_cannot_be_written(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        graph_text(flags, "./")


# ---- the file


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file that is converted in 0.1 s, and the default model in 2."""
    return str(tiny_gguf.write(tmp_path_factory.mktemp("source") / "tiny.gguf"))


def test_a_gguf_file_stays_where_it_is(source: str, tmp_path: Path) -> None:
    directory = pull(Wanted(source, tmp_path, options={"engine": "genai"}), quiet)
    assert directory == tmp_path / Path(source).stem
    assert options((directory / "graph.pbtxt").read_text())["models_path"] == source
    assert {p.name for p in directory.iterdir()} == {"graph.pbtxt", "pull.json"}


def test_a_directory_in_the_repository_is_named_from_its_graph(model: Path, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "openvino_model.xml").touch()
    assert pull(Wanted(str(tmp_path / "m"), tmp_path), quiet) == tmp_path / "m"
    assert options((tmp_path / "m" / "graph.pbtxt").read_text())["models_path"] == "./"


def test_a_directory_without_openvinos_form(model: Path, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with pytest.raises(LoadError, match=r"has no openvino_model.xml, and no .gguf file. optimum-cli export"):
        pull(Wanted(str(tmp_path / "m"), tmp_path / "r"), quiet)
    (tmp_path / "m" / "a.gguf").symlink_to(model)
    directory = pull(Wanted(str(tmp_path / "m"), tmp_path / "r", options={"engine": "genai"}), quiet)
    assert options((directory / "graph.pbtxt").read_text())["models_path"] == f"{tmp_path}/m/a.gguf"
    (tmp_path / "m" / "b.gguf").symlink_to(model)
    with pytest.raises(LoadError, match=r"several .gguf files, name one: a.gguf, b.gguf"):
        pull(Wanted(str(tmp_path / "m"), tmp_path / "r"), quiet)


def test_other_flags_write_an_unchanged_graph_anew(source: str, tmp_path: Path) -> None:
    graph = pull(Wanted(source, tmp_path, name="m"), quiet) / "graph.pbtxt"
    pull(Wanted(source, tmp_path, name="m", options={"max_num_seqs": 7}), quiet)
    assert "max_num_seqs: 7" in graph.read_text()


def test_explicit_for_a_changed_graph_is_said(source: str, tmp_path: Path) -> None:
    directory = pull(Wanted(source, tmp_path, name="m", explicit=True), quiet)
    assert "OutputParserCalculator" in (directory / "graph.pbtxt").read_text()
    (directory / "graph.pbtxt").write_text("# mine")
    with pytest.raises(LoadError, match="--explicit is not applied"):
        pull(Wanted(source, tmp_path, name="m", explicit=True), quiet)


def test_a_changed_graph_is_kept_without_force(source: str, tmp_path: Path) -> None:
    graph = pull(Wanted(source, tmp_path, name="m"), quiet) / "graph.pbtxt"
    mine = graph.read_text().replace("max_num_seqs: 256", "max_num_seqs: 12")
    graph.write_text(mine)
    said: list[str] = []
    pull(Wanted(source, tmp_path, name="m"), said.append)
    assert graph.read_text() == mine
    assert any("has changes and is kept; --force" in text for text in said)
    with pytest.raises(LoadError, match="--cache_size is not applied. --force overwrites it"):
        pull(Wanted(source, tmp_path, name="m", options={"cache_size": 1}), quiet)
    assert graph.read_text() == mine
    pull(Wanted(source, tmp_path, name="m", force=True), quiet)
    assert "max_num_seqs: 256" in graph.read_text()


def test_a_graph_of_somebody_else_is_kept_too(source: str, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "graph.pbtxt").write_text("# mine\n")
    pull(Wanted(source, tmp_path, name="m"), quiet)
    assert (tmp_path / "m" / "graph.pbtxt").read_text() == "# mine\n"


def test_options_that_no_graph_takes_are_told_before_anything_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"^tool_parser: .*hermes"):
        pull(Wanted("smollm2", tmp_path / "r", options={"tool_parser": "hermes"}), quiet)
    assert not (tmp_path / "r").exists()
    with pytest.raises(InvalidArgument, match="--model_name"):
        pull(Wanted("smollm2", tmp_path / "r", name="../x"), quiet)


def test_a_repository_that_cannot_be_written(source: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LoadError, match="Not a directory"):
        pull(Wanted(source, tmp_path / "file"), quiet)
