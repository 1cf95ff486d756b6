"""`--weight-format int8` and `int4`: float weights of every source, compressed by nncf, and back."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import gguf
import pytest

from ovserve.errors import InvalidArgument
from ovserve.pull import record
from ovserve.pull.run import Wanted, pull
from tests.pull import tiny_gguf
from tests.pull.conftest import REPO
from tests.pull.hub_server import HubServer

GOES_ON = "goes on after"
pytestmark = pytest.mark.long


def constants(directory: Path) -> dict[str, int]:
    """The number of constants by their type, packed ones alone."""
    text = (directory / "openvino_model.xml").read_text()
    found = re.findall(r'type="Const".*?element_type="([ui][48])"', text, re.DOTALL)
    return {kind: found.count(kind) for kind in sorted(set(found))}


@pytest.mark.parametrize("bits", record.COMPRESSED)
def test_a_model_of_the_hub_and_back(hub: HubServer, tmp_path: Path, bits: str) -> None:
    said: list[str] = []
    directory = pull(Wanted(REPO, tmp_path / "r"), said.append)
    assert constants(directory) == {}
    size = (directory / "openvino_model.bin").stat().st_size
    pull(Wanted(REPO, tmp_path / "r", weight_format=bits, verify=True), said.append)
    assert sum(f"weights are compressed to {bits[-1]} bits" in text for text in said) == 1
    assert any(GOES_ON in text for text in said)
    assert ("u4" in constants(directory)) == (bits == "int4")
    assert (directory / "openvino_model.bin").stat().st_size < size
    assert record.read(directory).compressed == bits
    before = (directory / "openvino_model.bin").stat()
    for same in (bits, ""):  # without the flag it stays what it is
        pull(Wanted(REPO, tmp_path / "r", weight_format=same), said.append)
        assert (directory / "openvino_model.bin").stat() == before
    pull(Wanted(REPO, tmp_path / "r", weight_format=record.SOURCE), said.append)
    assert (constants(directory), record.read(directory).compressed) == ({}, "")


def test_a_gguf_file_of_floats(tmp_path: Path) -> None:
    said: list[str] = []
    floats = str(tiny_gguf.write(tmp_path / "floats.gguf", gguf.GGMLQuantizationType.F16))
    directory = pull(Wanted(floats, tmp_path / "r", weight_format="int4", verify=True), said.append)
    assert "u4" in constants(directory)
    assert any(GOES_ON in text for text in said)


def test_a_model_without_floats_stays_as_it_is_and_says_so(hub: HubServer, tmp_path: Path) -> None:
    directory = pull(Wanted(REPO, tmp_path / "r", weight_format="int8"), print)
    hub.files[REPO] = {file.name: file.read_bytes() for file in directory.iterdir()}
    said: list[str] = []
    other = pull(Wanted(REPO, tmp_path / "s", weight_format="int8"), said.append)
    assert sum("no weight is a float, so none is compressed to 8 bits" in text for text in said) == 1
    assert record.read(other).compressed == ""
    assert constants(other) == constants(directory)


def test_what_cannot_be_compressed_is_an_error(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = pull(Wanted(REPO, tmp_path / "r"), print)
    before = {file.name: file.stat() for file in directory.iterdir()}
    with pytest.raises(InvalidArgument, match="would change your own directory"):
        pull(Wanted(str(directory), tmp_path / "s", weight_format="int4"), print)
    with pytest.raises(InvalidArgument, match="--weight-format is for text generation"):
        pull(Wanted(str(directory), tmp_path / "s", task="embeddings", weight_format="int4"), print)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "nncf" else find(name))
    with pytest.raises(InvalidArgument, match=r"needs nncf; .*\[compress\]"):
        pull(Wanted(REPO, tmp_path / "r", weight_format="int4"), print)
    assert {file.name: file.stat() for file in directory.iterdir()} == before
