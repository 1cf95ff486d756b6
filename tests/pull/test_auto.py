"""`--weight-format auto`: which form of the weights is laid on which processor, by the real reader, and that one
graph serves both. The processors are told; that of the machine is read in tests/engine/test_processor.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import gguf
import msgspec
import pytest

from ovserve.engine.host.cpu import Processor
from ovserve.engine.model.files import PACKED
from ovserve.errors import InvalidArgument
from ovserve.pull import model, record, run
from ovserve.pull.graph_text import OptionValue
from ovserve.pull.run import Wanted, pull
from tests.pull import tiny_gguf
from tests.pull.conftest import Index

pytestmark = pytest.mark.long

TILES = Processor("with AMX", 2, 2, frozenset({"avx512f", "amx_tile", "amx_bf16"}))
BF16 = Processor("with bf16", 2, 2, frozenset({"avx512f", "avx512_bf16"}))
PLAIN = Processor("without", 2, 2, frozenset({"avx512f", "avx512_vnni"}))
KERNELS = Processor("with kernels", 2, 2, frozenset({"avx2", "f16c", "fma"}))
ROOT = Path(__file__).parents[2]
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


def test_our_kernels_get_the_numbers_of_the_file(index: Index, tmp_path: Path) -> None:
    file = tiny_gguf.write(tmp_path / "m.gguf", gguf.GGMLQuantizationType.Q5_0).read_bytes()
    models = {"small": index.model(file), "rounded": index.model(file, rounded_zeros=True)}
    for name, processor, told, exact in (
        ("small", KERNELS, "auto", True),
        ("small", KERNELS, "", True),
        ("small", TILES, "auto", False),
        ("small", KERNELS, "auto", True),
        ("rounded", KERNELS, "auto", False),
    ):
        directory = pull(Wanted(name, tmp_path / "r", weight_format=told), print, models, processor)
        assert record.read(directory).exact == exact
        assert ('element_type="u1"' in (directory / "openvino_model.xml").read_text()) == exact


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
    assert any("is there, converted" in text for text in said)


@pytest.mark.parametrize("processor", [PLAIN, TILES], ids=lambda p: p.name)
def test_a_file_that_lies_elsewhere_stays_there(packed: Path, tmp_path: Path, processor: Processor) -> None:
    wanted = Wanted(str(packed), tmp_path / "r", weight_format="auto", verify=True)
    said: list[str] = []
    directory = pull(wanted, said.append, machine=processor)
    assert GOES_ON in said[-2]
    assert 'models_path: "./"' in (directory / "graph.pbtxt").read_text()
    assert forms(directory) == {".xml"}
    assert packed.exists()
    pull(Wanted(str(packed), tmp_path / "r", weight_format="source"), said.append, machine=processor)
    assert f"{directory}/openvino_model.xml, converted before, is removed" in said
    assert f'models_path: "{packed}"' in (directory / "graph.pbtxt").read_text()
    assert {p.name for p in directory.iterdir()} == {"graph.pbtxt", "pull.json"}


def test_what_has_to_be_converted_is_in_both_forms(tmp_path: Path) -> None:
    unread = str(tiny_gguf.write(tmp_path / "m.gguf", gguf.GGMLQuantizationType.Q5_0))
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
        ({"plugin_config": '{"prompt_lookup": true}'}, True, True),
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
    wanted = Wanted("small", tmp_path / "r", weight_format="auto", options=options)
    graph = pull(wanted, print, {"small": index.model(packed.read_bytes())}, PLAIN) / "graph.pbtxt"
    assert ('engine: "paged"' in graph.read_text()) == chosen


@pytest.mark.parametrize(("machine", "tokens"), [(KERNELS, 512), (TILES, 1024), (PLAIN, 1024)])
def test_the_tokens_of_a_step_follow_the_kernels(machine: Processor, tokens: int) -> None:
    assert run.with_paged_engine({}, machine)["max_num_batched_tokens"] == tokens
    own = run.with_paged_engine({"max_num_batched_tokens": 64}, machine)
    assert own["max_num_batched_tokens"] == 64


def test_pull_again_keeps_the_form_that_is_there(index: Index, packed: Path, tmp_path: Path) -> None:
    """What `make serve` laid stays as it is when the tutorial's first command is typed in the same directory."""
    models = {"small": index.model(packed.read_bytes())}
    laid = Wanted("small", tmp_path / "r", weight_format="auto", explicit=True)
    directory = pull(laid, print, models, BF16)
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in directory.iterdir()}
    before.pop("graph.pbtxt")
    graph = (directory / "graph.pbtxt").read_text()
    assert "LLMExecutorCalculator" in graph
    pull(Wanted("small", tmp_path / "r"), print, models, BF16)
    for name, known in before.items():
        path = directory / name
        assert (path.stat().st_mtime_ns, path.read_bytes()) == known, name
    assert (directory / "graph.pbtxt").read_text() == graph
    pull(replace(laid, weight_format="source"), print, models, BF16)
    assert forms(directory) == {".gguf"}


def test_a_short_name_is_laid_as_serve_lays_it(index: Index, packed: Path, tmp_path: Path) -> None:
    models = {"small": index.model(packed.read_bytes())}
    directory = pull(Wanted("small", tmp_path / "r"), print, models, PLAIN)
    assert record.read(directory).auto
    assert forms(directory) == {".gguf", ".xml"}


def test_make_lays_the_default_model_again_if_a_file_is_gone(tmp_path: Path) -> None:
    """`make -n` over copies of the stamps: nothing to do, then a missing file, then another form."""
    directory = tmp_path / "models/smollm2"
    directory.mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    for name in (".venv/bin/pip", ".venv/.installed"):
        (tmp_path / name).touch()

    def steps(target: str = "setup") -> str:
        ran = subprocess.run(["make", "-n", target], cwd=tmp_path, capture_output=True, text=True, check=True)
        return ran.stdout

    assert "ovserve pull smollm2 --weight-format auto" in steps()
    made = re.search(r"touch (models/smollm2/\.converted-\S+)", steps())
    assert made is not None
    names = ("SmolLM2-135M-Instruct.Q4_1.gguf", "openvino_model.xml", "openvino_model.bin", "pull.json")
    for name in (*names, "generation_config.json", "graph.pbtxt"):
        (directory / name).touch()
    (tmp_path / made[1]).touch()
    assert "ovserve pull" not in steps()
    (directory / "openvino_model.bin").unlink()
    assert "ovserve pull smollm2 --weight-format auto" in steps()
    (directory / "openvino_model.bin").touch()
    assert "ovserve pull" not in steps()
    later = (tmp_path / made[1]).stat().st_mtime + 1
    os.utime(directory / "pull.json", (later, later))
    assert "ovserve pull smollm2 --weight-format auto" in steps()


def test_a_large_file_stays_packed(
    index: Index, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unpacked, 3 B parameters filled 12 GB, and the process was killed."""
    monkeypatch.setattr(model, "MAX_UNPACKED_FILE", packed.stat().st_size - 1)
    said: list[str] = []
    models = {"small": index.model(packed.read_bytes())}
    directory = pull(Wanted("small", tmp_path / "r", weight_format="auto"), said.append, models, TILES)
    assert record.read(directory).weight_format == ""
    assert not (directory / PACKED).exists()
    assert any(
        "weights packed, because the file has 0.00 GB; unpacked by --weight-format fp16" in s for s in said
    )
    pull(Wanted("small", tmp_path / "r", weight_format="auto"), said.append, models, TILES)
    assert said[-3].endswith("is there, converted from the same file")
