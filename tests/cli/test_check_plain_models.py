"""What `ovserve check` says of plain models is what a server does with them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_check import run
from tests.inference.conftest import start_site
from tests.inference.graphs import one


def configuration(directory: Path, entries: list[dict[str, Any]], **more: object) -> Path:
    file = directory / "config.json"
    file.write_text(json.dumps({"model_config_list": [{"config": entry} for entry in entries], **more}))
    return file


def entries_in(root: Path, plain_models: Path) -> list[dict[str, Any]]:
    """Entries that load, and some for each reason why one does not."""
    dummy = str(plain_models / "dummy")
    for name in ("cut", "mapped", "several", "empty"):
        shutil.copytree(plain_models / "two/1", root / name / "1")
    (root / "cut/1/model.bin").write_bytes(b"")
    (root / "mapped/1/mapping_config.json").write_text('{"inputs": {"none": "x"}}')
    shutil.copy(root / "several/1/model.xml", root / "several/1/other.xml")
    for file in (root / "empty/1").iterdir():
        file.unlink()
    (root / "empty/1/model.onnx").touch()
    return [
        {"name": "right", "base_path": dummy},
        {"name": "rank", "base_path": dummy, "shape": "(1,1,10)"},
        {"name": "dynamic", "base_path": dummy, "shape": "(-1,1:20)"},
        {"name": "gpu", "base_path": dummy, "target_device": "GPU"},
        {"name": "device", "base_path": dummy, "target_device": "TOASTER"},
        {"name": "property", "base_path": dummy, "plugin_config": {"NUM_STREAMZ": "1"}},
        {"name": "value", "base_path": dummy, "plugin_config": {"NUM_STREAMS": "many"}},
        {"name": "tensor", "base_path": dummy, "shape": {"z": "(1,10)"}},
        {"name": "layout", "base_path": dummy, "layout": "NHWC"},
        {"name": "unnamed", "base_path": str(plain_models / "two"), "shape": "(1,10)"},
        {"name": "reshaped", "base_path": str(plain_models / "two"), "shape": {"x": "(1,3)", "y": "(1,4)"}},
        {
            "name": "state",
            "base_path": str(plain_models / "summator"),
            "dynamic_batching": {"max_batch_size": 4},
        },
        {"name": "batched", "base_path": str(plain_models / "passthrough_string"), "batch_size": "a"},
        *({"name": name, "nireq": 1} for name in ("cut", "mapped", "several", "empty")),
        {"name": "colours", "base_path": dummy, "color_format": "BGR:GRAY"},
    ]


def test_the_check_of_plain_models_says_what_a_server_does(tmp_path: Path, plain_models: Path) -> None:
    entries = entries_in(tmp_path, plain_models)
    site = start_site(tmp_path, entries)
    try:
        states = {entry["name"]: site.states(entry["name"])["1"] for entry in entries}
    finally:
        site.server.stop()
    code, out, _ = run("check", tmp_path / "config.json")
    assert code == 1
    checked = dict(re.findall(r"^(\w+) version 1: (would be served|NOT SERVED)$", out, re.MULTILINE))
    assert checked == {
        name: "would be served" if state == "AVAILABLE" else "NOT SERVED"
        for name, (state, _) in states.items()
    }
    refused = {name: why for name, (state, why) in states.items() if state != "AVAILABLE"}
    assert len(refused) >= 12
    for name, why in refused.items():
        assert f"  error: {why}" in out, (name, why)
    assert states["rank"][0] == "AVAILABLE", "a shape of another rank is the runtime's matter"


def test_a_graph_is_checked_against_the_models_that_it_uses(tmp_path: Path, plain_models: Path) -> None:
    (tmp_path / "g").mkdir()
    graph = one("m", {"OVTENSOR": ("in", "none")}, {"OVTENSOR": ("out", "a")})
    (tmp_path / "g/graph.pbtxt").write_text(graph)
    file = configuration(tmp_path, [{"name": "g"}, {"name": "m", "base_path": str(plain_models / "dummy")}])
    code, out, _ = run("check", file)
    assert code == 1
    assert "g: NOT SERVED" in out
    assert "'none'" in out
    assert "m version 1: would be served" in out


@pytest.mark.parametrize(("names", "code"), [(["ovms_streams"], 0), (["ovms_streamz"], 1)])
def test_the_metrics_of_a_configuration_are_checked(
    tmp_path: Path, plain_models: Path, names: list[str], code: int
) -> None:
    metrics = {"metrics": {"enable": True, "metrics_list": names}}
    entries = [{"name": "m", "base_path": str(plain_models / "dummy")}]
    found, out, _ = run("check", configuration(tmp_path, entries, monitoring=metrics))
    assert found == code, out
    assert ("monitoring.metrics.metrics_list: 'ovms_streamz' is not" in out) is bool(code)


def test_refused_options_are_not_listed_as_supported(tmp_path: Path, plain_models: Path) -> None:
    entry = {"name": "m", "base_path": str(plain_models / "dummy"), "color_format": "BGR:GRAY", "nireq": -1}
    _, out, _ = run("check", "--ovms", configuration(tmp_path, [entry]))
    assert re.search(r"color_format +refused: color_format: expected BGR or RGB, got 'BGR:GRAY'", out)
    assert re.search(r"nireq +refused: nireq: expected", out)
    assert re.search(r"base_path +supported", out)
