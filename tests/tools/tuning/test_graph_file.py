"""The winner's graph means what won, wherever it is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ovserve.errors import InvalidArgument
from ovserve.tools.tuning.graph_file import applied, check_output, find, write
from tests.conftest import ROOT, script_graph


def test_properties_join_those_of_the_operator(tmp_path: Path) -> None:
    directory = script_graph(tmp_path / "g", "{}")
    file = directory / "graph.pbtxt"
    own = """models_path: "model.script.json"
      # one core is the database's
      plugin_config: '{"CPU_THREADS_NUM": 3, "X": "é"}'  # ours"""
    file.write_text(file.read_text().replace('models_path: "model.script.json"', own))
    target = find(directory)
    options = {"INFERENCE_NUM_THREADS": 2, "KV_CACHE_PRECISION": "u8", "max_num_batched_tokens": 512}
    output = directory / "graph.tuned.pbtxt"
    write(target, options, ["why", "", "OVMS_GRAPH"], output)
    text = output.read_text()
    assert text.startswith("# why\n#\n# OVMS_GRAPH\n\n# SmolLM2")
    assert "# one core is the database's" in text
    assert "  # ours\n      max_num_batched_tokens: 512\n" in text
    found = find(output)
    assert json.loads(found.options.plugin_config) == {
        "X": "é",
        "INFERENCE_NUM_THREADS": 2,
        "KV_CACHE_PRECISION": "u8",
    }
    assert found.spec == applied(target.spec, options)


@pytest.mark.parametrize("name", ["prompt_lookup", "single_node", "tools", "bounded_memory"])
def test_shipped_graphs_in_another_directory(name: str, tmp_path: Path, model: Path) -> None:
    target = find(ROOT / "graphs" / name)
    options = {"models_path": str(model.resolve()), "INFERENCE_NUM_THREADS": 1}
    write(target, options, ["why"], tmp_path / "graph.pbtxt")
    assert find(tmp_path / "graph.pbtxt").spec == applied(target.spec, options)


def test_an_output_that_cannot_be_is_refused(tmp_path: Path) -> None:
    target = find(script_graph(tmp_path, "{}"))
    for path, says in (
        (tmp_path, "is a directory"),
        (target.file, "exists"),
        (tmp_path / "no/x", "does not exist"),
    ):
        with pytest.raises(InvalidArgument, match=says):
            check_output(target, path, force=False)
    assert check_output(target, target.file, force=True) == target.file
