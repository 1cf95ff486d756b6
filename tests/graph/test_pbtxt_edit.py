"""Options set in a graph's text: the rest stays as its author wrote it, to the byte."""

from __future__ import annotations

import difflib

import pytest

from ovserve.errors import LoadError
from ovserve.graph.config import parse_graph
from ovserve.protos.llm_pb2 import LLMCalculatorOptions
from ovserve.tools.tuning.graph_file import literal, with_options, with_paths
from tests.conftest import ROOT

NAME = LLMCalculatorOptions.DESCRIPTOR.full_name
SHIPPED = [p for p in sorted((ROOT / "graphs").rglob("graph.pbtxt")) if NAME in p.read_text()]


def node_of(text: str) -> int:
    config = parse_graph(text)
    return next(i for i in range(len(config.message.node)) if config.options(i, LLMCalculatorOptions))


def options(text: str, node: int) -> LLMCalculatorOptions:
    found = parse_graph(text).options(node, LLMCalculatorOptions)
    assert found is not None
    return found


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.parent.name)
def test_only_what_is_set_changes(path: object) -> None:
    text = path.read_text()  # type: ignore[attr-defined]
    node = node_of(text)
    config = '{"A": "it\'s \\\\ so"}'
    new = with_options(
        text, node, NAME, {"plugin_config": config, "max_num_seqs": 7, "dynamic_split_fuse": False}
    )
    wanted = options(text, node)
    wanted.plugin_config, wanted.max_num_seqs, wanted.dynamic_split_fuse = config, 7, False
    assert options(new, node) == wanted
    removed = [line for line in difflib.ndiff(text.split("\n"), new.split("\n")) if line.startswith("- ")]
    assert all("plugin_config" in line or "max_num_seqs" in line for line in removed), removed


def graph(block: str) -> str:
    return f'node {{ calculator: "X" node_options {{ [type.googleapis.com/{NAME}] {block} }} }}\n'


@pytest.mark.parametrize(
    ("block", "becomes"),
    [
        ('{ models_path: "m" }', '{ models_path: "m" cache_size: 2 }'),
        ('{ models_path: "m", # why\n  }', '{ models_path: "m", cache_size: 2 # why\n  }'),
        ('{\n  models_path: "m"; # why\n}', '{\n  models_path: "m"; # why\n  cache_size: 2\n}'),
        (
            '{\n  models_path: "m"\n  cache_size: 9 # gigabytes\n}',
            '{\n  models_path: "m"\n  cache_size: 2 # gigabytes\n}',
        ),
        ("{ }", "{ cache_size: 2  }"),
        ("< cache_size : 1, >", "< cache_size : 2, >"),
    ],
)
def test_where_a_value_goes(block: str, becomes: str) -> None:
    assert with_options(graph(block), 0, NAME, {"cache_size": 2}) == graph(becomes)


def test_strings_of_several_pieces_are_one_value() -> None:
    text = graph("{ models_path: \"a\" 'b' # of two\n }")
    assert with_options(text, 0, NAME, {"models_path": "c"}) == graph('{ models_path: "c" # of two\n }')


def test_a_packed_message_is_refused() -> None:
    packed = f'node {{ calculator: "X" node_options {{ type_url: "a.b.c/{NAME}" value: "" }} }}'
    with pytest.raises(LoadError, match="not written out as text"):
        with_options(packed, 0, NAME, {"cache_size": 2})


def test_paths_move_wherever_they_are_named() -> None:
    text = graph('{ models_path: "m" draft_models_path: "/abs" chat_template_path: "m" device: "m" }')
    moved = with_paths(text, {"m": "../m"})
    found = options(moved, 0)
    assert (found.models_path, found.draft_models_path, found.chat_template_path, found.device) == (
        "../m",
        "/abs",
        "../m",
        "m",
    )


@pytest.mark.parametrize("value", ["", "a'b\"c", "tab\there", "line\nbreak", "é\\n", True, False, 12])
def test_a_literal_reads_back(value: str | int | bool) -> None:
    field = (
        "models_path"
        if isinstance(value, str)
        else "enable_prefix_caching"
        if isinstance(value, bool)
        else "cache_size"
    )
    assert getattr(options(graph(f"{{ {field}: {literal(value)} }}"), 0), field) == value
