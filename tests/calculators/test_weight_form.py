"""A model's directory that has come to another kind of processor is told of at load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ovserve.calculators.shipped import MODULES
from ovserve.engine.host.cpu import Processor, processor
from ovserve.graph import Registry
from ovserve.kinds.text.engine_spec import slower_form
from ovserve.kinds.text.options import parse_llm_options
from ovserve.serving.loader import check_graph
from tests.conftest import script_graph

TILES, PLAIN = Processor(flags=frozenset({"amx_bf16"})), Processor()


@pytest.mark.parametrize(
    ("known", "machine", "says"),
    [
        ({"weight_format": "fp16"}, PLAIN, "unpacked to 16 bits, which is slow on a processor without AMX"),
        ({"weight_format": "fp16", "auto": True}, PLAIN, "pull it again with --weight-format auto"),
        ({"weight_format": "fp16", "auto": True}, TILES, ""),
        (
            {"weight_format": "", "auto": True},
            TILES,
            "packed, which is slow for many streams on a processor with",
        ),
        ({"weight_format": "", "auto": True}, PLAIN, "query, key and value of its layers are not merged"),
        ({"weight_format": "", "auto": True, "form": 1}, PLAIN, ""),
        ({"weight_format": ""}, TILES, ""),
        ({}, TILES, ""),
        ({}, PLAIN, ""),
    ],
)
def test_what_is_slow_here(known: object, machine: Processor, says: str, tmp_path: Path) -> None:
    (tmp_path / "pull.json").write_text(json.dumps(known))
    said = slower_form(tmp_path, machine)
    assert says in said
    assert bool(says) == bool(said)


def test_a_directory_that_pull_knows_nothing_of(tmp_path: Path) -> None:
    assert slower_form(tmp_path, PLAIN) == slower_form(tmp_path, TILES) == ""


def test_the_load_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    here = "" if processor().unpacked_is_faster else "fp16"
    graph = script_graph(tmp_path / "g", "{}") / "graph.pbtxt"
    graph.write_text(graph.read_text().replace("model.script.json", "m"))
    model = tmp_path / "g/m"
    model.mkdir()
    (model / "openvino_model.xml").touch()
    (model / "pull.json").write_text(json.dumps({"weight_format": here, "auto": True}))

    def load(text: str = "") -> str:
        caplog.clear()
        (tmp_path / "g/graph.pbtxt").write_text(
            graph.read_text().replace("models_path:", f"{text} models_path:")
        )
        _, nodes = check_graph(tmp_path / "g", Registry(MODULES))
        parse_llm_options(nodes["llm"])
        return caplog.text

    assert f"node 'LLMExecutor': {model}: its weights are " in load()
    assert "its weights are" not in load('device: "GPU"')


def test_of_a_directory_the_only_file_is_the_model(tmp_path: Path) -> None:
    graph = script_graph(tmp_path / "g", "{}") / "graph.pbtxt"
    graph.write_text(graph.read_text().replace("model.script.json", "m"))
    model = tmp_path / "g/m"
    (model / ".gguf").mkdir(parents=True)  # where pull lays what it is about to convert

    def path() -> Path:
        _, nodes = check_graph(tmp_path / "g", Registry(MODULES))
        return Path(parse_llm_options(nodes["llm"]).spec.model_path)

    assert path() == model
    (model / "a.gguf").touch()
    assert path() == model / "a.gguf"
    (model / "b.gguf").touch()
    assert path() == model
    (model / "b.gguf").unlink()
    (model / "openvino_model.xml").touch()
    assert path() == model
