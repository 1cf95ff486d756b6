"""`ovserve check` on what a start refuses: devices, plugin_config, the cache, files that are not whole."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.test_check import run
from tests.conftest import ROOT, script_graph

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]  # it loads the real model, some times

NAME = "models_path: "


def graph(directory: Path, model: Path, *options: str) -> Path:
    """The default graph with another model and these options instead of its own."""
    directory.mkdir()
    text = (ROOT / "graphs/smollm2/graph.pbtxt").read_text()
    more = "".join(f"\n      {option}" for option in options)
    text = re.sub(r'models_path: "[^"]*"(\n *\w+: \w+)+', f'models_path: "{model}"{more}', text)
    (directory / "graph.pbtxt").write_text(text)
    return directory


def config(**properties: object) -> str:
    return f"plugin_config: '{json.dumps(properties)}'"


def test_what_a_start_refuses_of_devices_and_options(model: Path, tmp_path: Path) -> None:
    graph(tmp_path / "good", model)
    graph(
        tmp_path / "properties", model, config(KV_CACHE_PRECISION="u8", NUM_STREAMS=1, ATTENTION_BACKEND="PA")
    )
    graph(tmp_path / "driver", model, 'device: "GPU.7"')
    graph(tmp_path / "lower", model, 'device: "cpu"')
    graph(tmp_path / "key", model, config(NOPE=1))
    graph(tmp_path / "value", model, config(KV_CACHE_PRECISION="nonsense"))
    graph(tmp_path / "cache", model, "cache_size: 4000")
    code, out, _ = run("check", tmp_path)
    assert code == 1
    told = dict(re.findall(r"^(\w+): ([^\n]*\n(?:  .*\n)+)", out, re.MULTILINE))
    for name, says in {
        "driver": r"graph\.pbtxt:\d+: .*device: 'GPU\.7' cannot be used: .*devices here: CPU",
        "lower": r"graph\.pbtxt:\d+: .*device: 'cpu' cannot be used: ",
        "key": r"graph\.pbtxt:\d+: .*plugin_config: .*NOPE",
        "value": r"graph\.pbtxt:\d+: .*plugin_config: .*nonsense",
        "cache": r"graph\.pbtxt:\d+: .*cache_size: 4000 GB are more than the [\d.]+ GB",
    }.items():
        assert told[name].startswith("NOT SERVED"), name
        assert re.search(says, told[name]), told[name]
    for name in ("good", "properties"):
        assert told[name].startswith("would be served"), told[name]
    assert "not tried: loading the models and the load() of nodes, which `ovserve check --load` does" in out
    assert "5 errors" in out


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        (
            "openvino_language_model.bin",
            None,
            r"openvino_language_model\.bin is truncated: it has \d+ bytes, and",
        ),
        ("openvino_tokenizer.bin", None, r"openvino_tokenizer\.bin is truncated"),
        ("openvino_tokenizer.xml", "no xml", r"openvino_tokenizer\.xml:1: not XML: "),
        (
            "openvino_language_model.xml",
            "<html><p/></html>",
            r"model\.xml:1: not a model of OpenVINO: .*<html>",
        ),
    ],
)
def test_files_that_are_not_whole(
    vision_model: Path, tmp_path: Path, file: str, text: str | None, says: str
) -> None:
    shutil.copytree(vision_model, tmp_path / "model")
    graph(tmp_path / "g", tmp_path / "model")
    assert run("check", tmp_path / "g")[0] == 0
    broken = tmp_path / "model" / file
    broken.write_bytes(broken.read_bytes()[:-1] if text is None else text.encode())
    code, out, _ = run("check", tmp_path / "g")
    assert (code, "g: NOT SERVED" in out) == (1, True)
    assert re.search(f"error: .*{says}", out), out


def test_with_load_the_engines_start(model: Path, tmp_path: Path) -> None:
    graph(tmp_path / "real", model)
    script_graph(tmp_path / "good", "{}")
    script_graph(tmp_path / "bad", json.dumps({"load": "fails"}))
    code, out, errors = run("check", "--load", tmp_path)
    assert code == 1, errors
    assert "bad: NOT SERVED" in out
    assert "the script says that loading fails" in out
    for name in ("real", "good"):
        assert re.search(
            rf"^{name}: would be served\n(  .*\n)*  loaded and stopped again in [\d.]+ s$", out, re.M
        )
    assert "not tried" not in out
