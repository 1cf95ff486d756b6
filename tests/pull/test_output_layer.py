"""`--output_layer int8`: from every source, for models that are there as well, and back."""

from __future__ import annotations

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

GOES_ON = "goes on after 'The capital of France is' with 't'"
INT8 = record.INT8


def int8_constants(directory: Path) -> int:
    return len(re.findall(r'element_type="i8"', (directory / "openvino_model.xml").read_text()))


@pytest.mark.long
def test_a_converted_file(tmp_path: Path) -> None:
    """When it is converted, for one that was, and back to the source's."""
    tiny, said = str(tiny_gguf.write(tmp_path / "m.gguf")), list[str]()
    for name, output_layer, conversions in (("a", INT8, 1), ("b", "", 1), ("b", INT8, 0), ("b", "", 1)):
        said.clear()
        wanted = Wanted(
            tiny, tmp_path / "r", name, convert=True, output_layer=output_layer, verify=bool(output_layer)
        )
        directory = pull(wanted, said.append)
        assert sum(text.startswith("converting m.gguf") for text in said) >= conversions
        assert any("is there, converted" in text for text in said) == (not conversions)
        assert any(GOES_ON in text for text in said) == bool(output_layer)
        assert (int8_constants(directory), record.read(directory).output_layer) == (
            bool(output_layer),
            output_layer,
        )
    pull(Wanted(tiny, tmp_path / "r", "a", convert=True, output_layer=INT8, again=True), said.append)
    assert int8_constants(tmp_path / "r/a") == 1


@pytest.mark.long
def test_a_draft_and_unpacked_weights(tmp_path: Path) -> None:
    q8 = str(tiny_gguf.write(tmp_path / "q8.gguf", gguf.GGMLQuantizationType.Q8_0))
    draft = str(tiny_gguf.write(tmp_path / "draft.gguf"))
    wanted = Wanted(q8, tmp_path / "r", weight_format="fp16", draft=draft, output_layer=INT8, verify=True)
    said: list[str] = []
    directory = pull(wanted, said.append)
    assert any(GOES_ON in text for text in said)
    assert int8_constants(directory) == int8_constants(tmp_path / "r/draft") == 1


def test_a_model_of_the_hub(hub: HubServer, tmp_path: Path) -> None:
    said: list[str] = []
    directory = pull(Wanted(REPO, tmp_path / "r"), said.append)
    assert int8_constants(directory) == 0
    pull(Wanted(REPO, tmp_path / "r", output_layer=INT8), said.append)
    assert said.count(f"{directory}/openvino_model.xml: the output layer is in int8 per row") == 1
    assert int8_constants(directory) == 1
    hub.asked.clear()
    before = (directory / "openvino_model.bin").stat()
    pull(Wanted(REPO, tmp_path / "r", output_layer=INT8), said.append)
    assert (directory / "openvino_model.bin").stat() == before
    assert not [path for path, _ in hub.asked if path.endswith(".bin")]
    made = record.read(directory)
    assert (made.form, made.output_layer) == (record.FORM_VERSION, INT8)
    pull(Wanted(REPO, tmp_path / "r"), said.append)
    assert int8_constants(directory) == 0


def test_a_layer_that_is_not_finer_is_reported(hub: HubServer, tmp_path: Path) -> None:
    """As optimum-cli exports it with int4 weights: this layer is in int8 per row already."""
    directory = pull(Wanted(REPO, tmp_path / "r", output_layer=INT8), print)
    hub.files[REPO] = {file.name: file.read_bytes() for file in directory.iterdir()}
    said: list[str] = []
    pull(Wanted(REPO, tmp_path / "other", output_layer=INT8), said.append)
    assert any("the output layer stays as it is, which is not finer than int8 per row" in t for t in said)
    assert record.read(tmp_path / "other" / REPO).output_layer == ""


def test_what_is_not_changed_is_an_error(tmp_path: Path) -> None:
    tiny = str(tiny_gguf.write(tmp_path / "m.gguf"))
    with pytest.raises(InvalidArgument, match="needs a converted model; add --convert to pull .*m.gguf"):
        pull(Wanted(tiny, tmp_path / "r", output_layer=INT8, options={"engine": "genai"}), print)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "openvino_model.xml").touch()
    with pytest.raises(InvalidArgument, match="would change your own directory .*optimum-cli export"):
        pull(Wanted(str(tmp_path / "m"), tmp_path / "r", output_layer=INT8), print)
    assert not list((tmp_path / "r").rglob("graph.pbtxt"))
