"""Plain models by OVMS's command line: a model file, and the options of an entry as flags."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from ovserve.cli import main
from tests.conftest import Server, script_graph, start_process
from tests.inference.conftest import start_site

IMAGE = "increment_1x3x4x5"  # adds 1 to its only input, FP32 in NCHW


def served(plain_models: Path, model: str, *flags: str, file: bool = True) -> Server:
    path = plain_models / model
    if file:
        path = path / "1/model.xml"
    return start_process("--model_name", "m", "--model_path", str(path), *flags)


def inputs_of(server: Server) -> list[dict[str, Any]]:
    inputs: list[dict[str, Any]] = httpx.get(f"{server.url}/v2/models/m").json()["inputs"]
    return inputs


def infer(url: str, model: str, name: str, shape: list[int], datatype: str, data: list[Any]) -> list[float]:
    tensor = {"name": name, "shape": shape, "datatype": datatype, "data": data}
    answer = httpx.post(f"{url}/v2/models/{model}/infer", json={"inputs": [tensor]}, timeout=230)
    assert answer.status_code == 200, answer.text
    found: list[float] = answer.json()["outputs"][0]["data"]
    return found


@pytest.mark.parametrize(
    ("model", "flags", "expected"),
    [
        ("dummy", [], ("FP32", [1, 10])),
        ("dummy", ["--shape", "(-1,1:20)"], ("FP32", [-1, -1])),
        ("dummy", ["--shape", '{"b": "(3,7)"}', "--nireq", "2"], ("FP32", [3, 7])),
        ("dummy", ["--batch_size", "-1"], ("FP32", [-1, 10])),
        ("dummy", ["--batch_size", "5", "--target_device", "CPU"], ("FP32", [5, 10])),
        (IMAGE, ["--layout", "NHWC:NCHW"], ("FP32", [1, 4, 5, 3])),
        (IMAGE, ["--layout", "NHWC:NCHW", "--precision", "U8"], ("UINT8", [1, 4, 5, 3])),
    ],
)
def test_flags_of_a_model_file(
    plain_models: Path, model: str, flags: list[str], expected: tuple[str, list[int]]
) -> None:
    streams = "CPU_THROUGHPUT_STREAMS" if "--nireq" in flags else "NUM_STREAMS"
    server = served(plain_models, model, *flags, "--plugin_config", json.dumps({streams: 2}))
    try:
        (found,) = inputs_of(server)
        assert (found["datatype"], found["shape"]) == expected
        engines = httpx.get(f"{server.url}/v3/capabilities").json()["data"][0]["engines"]
        assert engines[0]["facts"]["streams"] == 2
        if "--nireq" in flags:
            metrics = httpx.get(f"{server.url}/metrics").text
            assert re.search(r'^ovms_infer_req_queue_size\{name="m",version="1"\} 2', metrics, re.MULTILINE)
        size = 1
        for one in found["shape"]:
            size *= abs(one)
        data: list[Any] = [3] * size
        shape = [abs(one) for one in found["shape"]]
        assert infer(server.url, "m", found["name"], shape, found["datatype"], data) == [4.0] * size
    finally:
        assert server.stop() == 0


def test_versions_of_the_command_line(plain_models: Path, tmp_path: Path) -> None:
    for version in (1, 2, 3):
        shutil.copytree(plain_models / "dummy/1", tmp_path / f"m/{version}")
    policy = '{"specific": {"versions": [1, 3]}}'
    server = start_process(
        "--model_name", "m", "--model_path", str(tmp_path / "m"), "--model_version_policy", policy
    )
    try:
        assert httpx.get(f"{server.url}/v2/models/m").json()["versions"] == ["1", "3"]
    finally:
        assert server.stop() == 0


def test_a_directory_with_one_model(plain_models: Path) -> None:
    server = served(plain_models, "dummy/1", file=False)
    try:
        assert inputs_of(server)[0]["shape"] == [1, 10]
    finally:
        assert server.stop() == 0


def pixels(*channels: float) -> list[float]:
    """4 x 5 pixels of one colour, in NHWC."""
    return [*channels] * 20


def planes(*channels: float) -> list[float]:
    """What the model answers for them, in NCHW: each plane plus 1."""
    return [channel + 1 for channel in channels for _ in range(20)]


PREPROCESSED = [
    ({"mean": 10, "scale": 2}, planes(45, 95, -5)),
    ({"mean": [100, 200, 0], "scale": [1, 2, 4]}, planes(0, 0, 0)),
    ({"mean": {"input": [100, 200, 0]}}, planes(0, 0, 0)),
    ({"mean": "( 100, 200.0 ,0)"}, planes(0, 0, 0)),
    ({"scale": [10, 100, 1]}, planes(10, 2, 0)),
    ({"color_format": "RGB:BGR"}, planes(0, 200, 100)),
    ({"color_format": "RGB:BGR", "mean": [0, 200, 100]}, planes(0, 0, 0)),
]


@pytest.fixture(scope="module")
def sites(plain_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One server of a configuration with all cases."""
    common = {"base_path": str(plain_models / IMAGE), "layout": "NHWC:NCHW"}
    entries: list[dict[str, Any]] = [
        {"name": f"m{i}", **common, **given} for i, (given, _) in enumerate(PREPROCESSED)
    ]
    entries += [{**e, "name": f"u{i}", "precision": "UINT8"} for i, e in enumerate(entries)]
    made = start_site(tmp_path_factory.mktemp("preprocessed"), entries)
    yield made
    made.server.stop()


@pytest.mark.parametrize("number", range(len(PREPROCESSED)))
def test_inputs_are_preprocessed_as_the_configuration_says(sites: Any, number: int) -> None:
    _, expected = PREPROCESSED[number]
    for name, datatype in ((f"m{number}", "FP32"), (f"u{number}", "UINT8")):
        shape = [1, 4, 5, 3]
        assert infer(sites.url, name, "input", shape, datatype, pixels(100, 200, 0)) == expected, datatype


def test_inputs_are_preprocessed_as_the_command_line_says(plain_models: Path) -> None:
    flags = ["--layout", "NHWC:NCHW", "--mean", "[100,200,0]", "--scale", "2", "--precision", "uint8"]
    server = served(plain_models, IMAGE, *flags, "--color_format", "BGR")
    try:
        found = infer(server.url, "m", "input", [1, 4, 5, 3], "UINT8", pixels(104, 206, 8))
        assert found == planes(2, 3, 4)
    finally:
        assert server.stop() == 0


def test_the_second_precision_is_what_inputs_are_converted_to(plain_models: Path) -> None:
    server = served(plain_models, IMAGE, "--layout", "NHWC:NCHW", "--precision", "fp32:Uint8", "--scale", "2")
    try:
        found = infer(server.url, "m", "input", [1, 4, 5, 3], "FP32", pixels(100.75, 7.5, 3.25))
        assert found == planes(50, 3.5, 1.5)
    finally:
        assert server.stop() == 0


def failure(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["--rest_port", "0", "--response_store", "off", *flags])
    assert ended.value.code in (1, 2)
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--shape", "(a)"], "--shape: expected one as"),
        (["--shape", "{b"], "--shape: not JSON"),
        (["--nireq", "many"], "--nireq: expected 0 to 100000, got 'many'"),
        (["--batch_size", "x"], "--batch_size: expected a number"),
        (["--mean", "[1,x]"], "--mean: expected a number, a list"),
        (["--mean", "NaN"], "--mean: expected a number, a list"),
        (["--scale", "[1,0]"], "and not 0; got [1, 0]"),
        (["--mean", "(1,2]"], "--mean: expected a number, a list"),
        (["--precision", "FP12"], "--precision: expected one of FP16"),
        (["--precision", "FP32:"], "or two as FP32:FP16, got 'FP32:'"),
        (["--precision", "FP32:FP16:U8"], "or two as FP32:FP16, got 'FP32:FP16:U8'"),
        (["--color_format", "NV12"], "--color_format: expected BGR or RGB"),
        (["--model_version_policy", "newest"], "--model_version_policy: expected exactly one of"),
        (["--plugin_config", "[]"], "plugin_config: expected a JSON object, got []"),
        (["--cache_size", "2"], "--cache_size: it is for graphs, and this is a plain model"),
        (["--task", "text_generation"], "is a plain model, which has none"),
    ],
)
def test_what_is_wrong_names_the_flag(
    plain_models: Path, flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(plain_models / "dummy/1/model.xml")
    assert says in failure(capsys, "--model_name", "m", "--model_path", path, *flags)


def test_flags_of_a_plain_model_are_refused_with_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = script_graph(tmp_path / "g", '{"replies": []}')
    for flag in ("shape", "layout", "mean", "precision", "model_version_policy"):
        said = failure(capsys, "--model_name", "m", "--model_path", str(graph), f"--{flag}", "1")
        assert f"--{flag} is of a plain model, and {graph} is none" in said
    (tmp_path / "config.json").write_text('{"model_config_list": []}')
    said = failure(capsys, "--config_path", str(tmp_path / "config.json"), "--shape", "auto")
    assert "--shape: only for one model" in said
    server = start_process("--model_name", "m", "--model_path", str(graph), "--nireq", "4")
    try:
        assert any("--nireq has no effect: the engine batches" in line for line in server.errors)
    finally:
        server.stop()


def test_what_does_not_fit_the_model_is_its_state(plain_models: Path, tmp_path: Path) -> None:
    common = {"base_path": str(plain_models / IMAGE)}
    wrong = {
        "mean": ({"mean": [1, 2]}, "2 numbers for the 3 channels of 'input'"),
        "name": ({"scale": {"x": 2}}, "'x' is not a tensor of the model"),
        "axis": (
            {"layout": "N...", "mean": [1, 2, 3]},
            "which axis of 'input' has the channels? give layout",
        ),
        "colour": ({"layout": "N...", "color_format": "BGR:RGB"}, "color_format: which axis of 'input'"),
        "several": ({"base_path": str(plain_models / "two"), "mean": 1}, "the model has 2 inputs"),
    }
    site = start_site(tmp_path, [{"name": name, **common, **given} for name, (given, _) in wrong.items()])
    try:
        for name, (_, says) in wrong.items():
            (state, why) = site.states(name)["1"]
            assert state == "LOADING"
            assert says in why
    finally:
        site.server.stop()


CLOUD = [
    ("s3://bucket/m", "aws s3 sync 's3://bucket/m' DIRECTORY (without effect here: S3_ENDPOINT)"),
    ("gs://bucket/m", "gcloud storage rsync -r 'gs://bucket/m' DIRECTORY"),
    ("azfs://box/m", "az storage file download-batch --source 'box' --pattern 'm/*' --destination DIRECTORY"),
    ("az://box/m", "az storage blob download-batch --source 'box' --pattern 'm/*' --destination DIRECTORY"),
]


def test_cloud_storage_is_said_to_be_absent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3_ENDPOINT", "http://127.0.0.1:9")
    site = start_site(
        tmp_path,
        [{"name": f"{i}{name}", "base_path": url, **more}
         for i, (url, _) in enumerate(CLOUD) for name, more in (("graph", {}), ("plain", {"shape": "auto"}))],
    )  # fmt: skip
    try:
        for i, (_, says) in enumerate(CLOUD):
            for name in ("graph", "plain"):
                ((_, why),) = site.states(f"{i}{name}").values()
                assert "is in cloud storage, which is not read here" in why
                assert says in why
    finally:
        site.server.stop()
    config = str(tmp_path / "config.json")
    for url, says in CLOUD:
        commands = [
            ["serve", "--model_name", "m", "--model_path", url],
            ["serve", url],
            ["check", url],
            ["pull", url, "--model_repository_path", str(tmp_path)],
            ["serve", "--add_to_config", "--config_path", config, "--model_name", "m", "--model_path", url],
        ]
        for command in commands:
            with pytest.raises(SystemExit) as ended:
                main(command)
            assert ended.value.code == 1
            printed = capsys.readouterr()
            assert says in printed.err + printed.out, command
    with pytest.raises(SystemExit):
        main(["check", config])
    assert CLOUD[0][1] in capsys.readouterr().out


def test_an_entry_that_is_added_has_the_flags(
    plain_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    flags = ["--shape", '{"input": "(2,3,4,5)"}', "--mean", "[1,2,3]", "--scale", "2", "--nireq", "3"]
    added = ["--config_path", str(file), "--model_name", "m", "--model_path", str(plain_models / IMAGE)]
    with pytest.raises(SystemExit) as ended:
        main(["--add_to_config", *added, *flags])
    assert not ended.value.code, capsys.readouterr().err
    (entry,) = json.loads(file.read_text())["model_config_list"]
    assert entry["config"] == {
        "name": "m", "base_path": str(plain_models / IMAGE), "shape": {"input": "(2,3,4,5)"},
        "mean": [1, 2, 3], "scale": 2, "nireq": 3,
    }  # fmt: skip
    server = start_process("--config_path", str(file))
    try:
        assert inputs_of(server)[0]["shape"] == [2, 3, 4, 5]
    finally:
        server.stop()
