"""`--weight-format auto`: which form of the weights is laid on which processor, by the real reader, and that one
graph serves both. The processors are told; that of the machine is read in tests/engine/test_processor.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import gguf
import msgspec
import pytest

from ovserve.engine.host.cpu import Processor
from ovserve.engine.model.files import PACKED
from ovserve.errors import InvalidArgument, LoadError
from ovserve.pull import record, run
from ovserve.pull.graph_text import OptionValue
from ovserve.pull.run import Wanted, pull
from tests.pull import tiny_gguf
from tests.pull.conftest import Index

pytestmark = pytest.mark.long

TILES = Processor("with AMX", 2, 2, frozenset({"avx512f", "amx_tile", "amx_bf16"}))
BF16 = Processor("with bf16", 2, 2, frozenset({"avx512f", "avx512_bf16"}))
PLAIN = Processor("without", 2, 2, frozenset({"avx512f", "avx512_vnni"}))
GOES_ON = "goes on after 'The capital of France is' with 't'"


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return tiny_gguf.write(tmp_path / "m.gguf", gguf.GGMLQuantizationType.Q8_0)


def forms(directory: Path) -> set[str]:
    return {p.suffix for p in directory.iterdir() if p.name in ("m.gguf", "openvino_model.xml")}


def test_one_directory_is_served_on_both_processors(index: Index, packed: Path, tmp_path: Path) -> None:
    """A disk that goes from one to the other and back."""
    models = {"small": index.model(packed.read_bytes())}
    wanted = Wanted("small", tmp_path / "r", weight_format="auto", verify=True)
    graphs, sizes = set(), list[int]()
    for processor, form in ((PLAIN, ""), (TILES, "fp16"), (PLAIN, "")):
        said: list[str] = []
        directory = pull(wanted, said.append, models, processor)
        assert GOES_ON in said[-2]
        assert forms(directory) == {".gguf", ".xml"}
        known = record.read(directory)
        assert (known.auto, known.weight_format, known.converted) == (True, form, True)
        sizes.append((directory / "openvino_model.bin").stat().st_size)
        graphs.add((directory / "graph.pbtxt").read_text())
    assert len(graphs) == 1
    assert 'models_path: "./"' in graphs.pop()
    assert sizes[0] == sizes[2] != sizes[1]


@pytest.mark.parametrize(
    ("processor", "options", "written"),
    [
        (BF16, {}, '{"KV_CACHE_PRECISION": "bf16"}'),
        (BF16, {"kv_cache_precision": "u8"}, '{"KV_CACHE_PRECISION": "u8"}'),
        (BF16, {"plugin_config": '{"KV_CACHE_PRECISION": "f16"}'}, '{"KV_CACHE_PRECISION": "f16"}'),
        (BF16, {"target_device": "GPU"}, "{ }"),
        (PLAIN, {}, "{ }"),
        (replace(TILES, flags=TILES.flags | BF16.flags), {}, "{ }"),
    ],
)
def test_the_kv_cache(
    index: Index,
    packed: Path,
    tmp_path: Path,
    processor: Processor,
    options: Mapping[str, OptionValue],
    written: str,
) -> None:
    whole = packed.read_bytes()
    models = {"small": index.model(whole, wide_cache=True), "other": index.model(whole)}
    for name, expected in ("small", written), ("other", written if options else "{ }"):
        wanted = Wanted(name, tmp_path / "r", weight_format="auto", options=options)
        graph = (pull(wanted, print, models, processor) / "graph.pbtxt").read_text()
        assert f"plugin_config: '{expected}'" in graph


def test_the_output_layer(index: Index, packed: Path, tmp_path: Path) -> None:
    """One disk on all processors, with and without the flag that wins over the processor."""
    whole = packed.read_bytes()
    models = {"small": index.model(whole, int8_output=True), "other": index.model(whole)}
    for name, processor, told, made in (
        ("small", BF16, "", record.INT8),
        ("small", BF16, record.SOURCE, ""),
        ("small", BF16, "", record.INT8),
        ("small", PLAIN, "", ""),
        ("small", TILES, "", ""),
        ("small", PLAIN, record.INT8, record.INT8),
        ("other", BF16, "", ""),
    ):
        wanted = Wanted(name, tmp_path / "r", weight_format="auto", output_layer=told, verify=True)
        said: list[str] = []
        directory = pull(wanted, said.append, models, processor)
        assert GOES_ON in said[-2]
        assert record.read(directory).output_layer == made
        written = (directory / "openvino_model.xml").read_text()
        assert ('element_type="i8"' in written) == bool(made)
    gpu = Wanted("small", tmp_path / "gpu", weight_format="auto", options={"target_device": "GPU"})
    assert record.read(pull(gpu, print, models, BF16)).output_layer == ""


def test_unpacked_weights_are_kept_packed_too(index: Index, packed: Path, tmp_path: Path) -> None:
    """Merged, and made for a directory of a version that did not keep them."""
    models = {"small": index.model(packed.read_bytes())}
    wanted = Wanted("small", tmp_path / "r", weight_format="auto")
    directory = pull(wanted, print, models, TILES)
    text = (directory / PACKED).read_text()
    assert ('element_type="u8"' in text, "qkv_proj" in text) == (True, True)
    assert 'element_type="u8"' not in (directory / "openvino_model.xml").read_text()

    record.write(directory, msgspec.structs.replace(record.read(directory), form=0))
    (directory / PACKED).unlink()
    assert (pull(wanted, print, models, TILES) / PACKED).is_file()
    assert not (pull(wanted, print, models, PLAIN) / PACKED).exists()


def test_weights_of_16_bits_have_no_packed_form(index: Index, tmp_path: Path) -> None:
    whole = tiny_gguf.write(tmp_path / "m.gguf").read_bytes()
    models = {"small": index.model(whole)}
    wanted = Wanted("small", tmp_path / "r", weight_format="auto")
    for _ in range(2):
        said: list[str] = []
        directory = pull(wanted, said.append, models, TILES)
        assert not (directory / PACKED).exists()
    assert any("is there, converted" in text for text in said)


@pytest.mark.parametrize("processor", [PLAIN, TILES], ids=lambda p: p.name)
def test_what_is_laid_is_left_alone(
    index: Index, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processor: Processor
) -> None:
    models = {"small": index.model(packed.read_bytes())}
    wanted = Wanted("small", tmp_path / "r", weight_format="auto")
    directory = pull(wanted, print, models, processor)
    before = {p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in directory.iterdir()}
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    said: list[str] = []
    pull(wanted, said.append, models, processor)
    after = {p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in directory.iterdir()}
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert changed <= {"graph.pbtxt", "pull.json"}, changed
    assert any("its hash is right" in text for text in said)


@pytest.mark.parametrize("processor", [PLAIN, TILES], ids=lambda p: p.name)
def test_a_file_that_lies_elsewhere_stays_there(packed: Path, tmp_path: Path, processor: Processor) -> None:
    wanted = Wanted(str(packed), tmp_path / "r", weight_format="auto", verify=True)
    said: list[str] = []
    directory = pull(wanted, said.append, machine=processor)
    assert GOES_ON in said[-2]
    assert 'models_path: "./"' in (directory / "graph.pbtxt").read_text()
    assert forms(directory) == {".xml"}
    assert packed.exists()
    pull(Wanted(str(packed), tmp_path / "r"), said.append, machine=processor)
    assert f"{directory}/openvino_model.xml, converted before, is removed" in said
    assert f'models_path: "{packed}"' in (directory / "graph.pbtxt").read_text()
    assert {p.name for p in directory.iterdir()} == {"graph.pbtxt", "pull.json"}


def test_what_has_to_be_converted_is_in_both_forms(tmp_path: Path) -> None:
    unread = str(tiny_gguf.write(tmp_path / "m.gguf", gguf.GGMLQuantizationType.Q5_0))
    with pytest.raises(LoadError, match=r"reader rejects its Q5_0 tensors; --convert writes them as Q8_0"):
        pull(Wanted(unread, tmp_path / "r", weight_format="auto"), print, machine=TILES)
    for processor, form in ((PLAIN, ""), (TILES, "fp16")):
        said: list[str] = []
        wanted = Wanted(unread, tmp_path / "r", convert=True, weight_format="auto", verify=True)
        directory = pull(wanted, said.append, machine=processor)
        assert GOES_ON in said[-2]
        assert record.read(directory).weight_format == form
        assert forms(directory) == {".xml"}


def test_a_directory_has_the_form_it_was_exported_with(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/openvino_model.xml").touch()
    for processor in (PLAIN, TILES):
        with pytest.raises(InvalidArgument, match=r"--weight-format is for .gguf files"):
            pull(Wanted(str(tmp_path / "m"), tmp_path / "r", weight_format="auto"), print, machine=processor)


@pytest.mark.parametrize(
    ("options", "there", "chosen"),
    [
        ({}, True, True),
        ({"max_num_seqs": 7}, True, True),
        ({}, False, False),  # without the packages of grammars
        ({"engine": "genai"}, True, False),
        ({"pipeline_type": "LM"}, True, False),
        ({"plugin_config": '{"prompt_lookup": true}'}, True, False),
    ],
)
def test_the_engine(
    index: Index,
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: Mapping[str, OptionValue],
    there: bool,
    chosen: bool,
) -> None:
    monkeypatch.setattr(run, "masks_grammars", lambda: there)
    whole = packed.read_bytes()
    models = {"small": index.model(whole, paged=True), "other": index.model(whole)}
    for name, expected in ("small", chosen), ("other", False):
        wanted = Wanted(name, tmp_path / "r", weight_format="auto", options=options)
        graph = (pull(wanted, print, models, PLAIN) / "graph.pbtxt").read_text()
        assert ('engine: "paged"' in graph) == expected
