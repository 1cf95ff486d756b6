"""Models whose query, key and value are merged by `pull`: the same text, from every source, and not twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import openvino as ov
import openvino_genai as ov_genai
import pytest

from benchmarks.quality import perplexity
from ovserve.engine.model.lora import unusable
from ovserve.pull import record
from ovserve.pull.convert import MERGE, rewrite_in_place
from ovserve.pull.run import Wanted, pull
from tests import lora, short_model
from tests.pull.conftest import REPO
from tests.pull.hub_server import HubServer

PROMPTS = ["Write a long story about a lighthouse.", "def quicksort(a):", "Why is the sky blue?"]


def products(directory: Path) -> int:
    network = ov.Core().read_model(directory / "openvino_model.xml")
    return sum(node.get_type_name() == "MatMul" for node in network.get_ops())


def texts(directory: Path) -> list[str]:
    scheduling = ov_genai.SchedulerConfig()
    scheduling.cache_size = 1
    pipeline = ov_genai.ContinuousBatchingPipeline(str(directory), scheduling, "CPU", {})
    config = ov_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.apply_chat_template = 24, True, False
    return [made.m_generation_ids[0] for made in pipeline.generate(PROMPTS, [config] * len(PROMPTS))]


@pytest.mark.long
def test_two_layers_of_the_default_model_say_the_same(model: Path, tmp_path: Path) -> None:
    """And a model that was converted before is merged without being converted again."""
    said: list[str] = []
    file = tmp_path / model.name
    short_model.write_gguf(model, file)
    directory = pull(Wanted(str(file), tmp_path / "r", convert=True, merge=False), said.append)
    assert record.read(directory).form == 0
    before = shutil.copytree(directory, tmp_path / "before")
    pull(Wanted(str(file), tmp_path / "r", convert=True), said.append)
    assert record.read(directory).form == record.FORM_VERSION
    assert sum(text.startswith("converting") for text in said) == 1
    # Two of each layer; the minima of a matrix of Q4_1 are a product of their own.
    assert products(before) - products(directory) == 2 * short_model.LAYERS * 2
    assert texts(directory) == texts(before)
    prose = Path(__file__).parents[2].joinpath("CONTRIBUTING.md").read_text()
    assert perplexity(directory, prose, 96) == pytest.approx(perplexity(before, prose, 96), rel=1e-3)


def test_a_model_of_the_hub(hub: HubServer, tmp_path: Path) -> None:
    lora.adapter(tmp_path / "adapter", 1)
    adapter = str(tmp_path / "adapter/adapter_model.safetensors")
    said: list[str] = []
    other_device = {"target_device": "GPU"}
    directory = pull(Wanted(REPO, tmp_path / "r", options=other_device), said.append)
    apart = products(directory)
    assert not unusable(adapter, str(directory))
    pull(Wanted(REPO, tmp_path / "r"), said.append)
    assert any("query, key and value of each layer are merged" in text for text in said)
    assert products(directory) == apart - 2 * lora.LAYERS
    assert "repeat its `ovserve pull` with --merge_qkv false" in unusable(adapter, str(directory))
    hub.asked.clear()
    network = (directory / "openvino_model.bin").stat()
    pull(Wanted(REPO, tmp_path / "r"), said.append)
    assert (directory / "openvino_model.bin").stat() == network
    assert not [path for path, _ in hub.asked if path.endswith(".bin")]
    pull(Wanted(REPO, tmp_path / "r", merge=False), said.append)
    assert products(directory) == apart
    assert not unusable(adapter, str(directory))


def test_a_model_that_cannot_be_merged_stays_as_it_is(tmp_path: Path) -> None:
    """With half of its weights: the runtime refuses to read it."""
    lora.model(tmp_path / "m")
    weights = tmp_path / "m/openvino_model.bin"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    (tmp_path / "m/replaced.bin").write_bytes(b"half")
    before = {file.name: file.read_bytes() for file in (tmp_path / "m").iterdir()}
    said: list[str] = []
    assert not rewrite_in_place(tmp_path / "m", [MERGE], said.append)
    assert "openvino_model.xml stays as it is, which is slower: " in said[0]
    after = {file.name: file.read_bytes() for file in (tmp_path / "m").iterdir()}
    assert after == {name: data for name, data in before.items() if name != "replaced.bin"}


def test_a_directory_of_the_user_is_not_changed(tmp_path: Path) -> None:
    lora.model(tmp_path / "exported")
    before = products(tmp_path / "exported")
    pull(Wanted(str(tmp_path / "exported"), tmp_path / "r"), print)
    assert products(tmp_path / "exported") == before
