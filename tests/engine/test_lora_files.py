"""Adapters of which the library would apply a part without a word, or read what is not theirs."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ovserve.engine.model.files import json_object, json_or_empty
from ovserve.engine.model.lora import scaling, unusable
from ovserve.engine.model.safetensors import Tensors
from ovserve.errors import LoadError
from ovserve.kinds.images.spec import ImageAdapter, ImageSpec
from ovserve.kinds.images.worker.pipelines import Adapters
from scripts.image_model import write_safetensors
from tests import lora

Q = f"{lora.PREFIX}.0.self_attn.q_proj"
DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("lora")
    lora.model(place / "base")
    return place


def test_all_of_an_adapter_is_applied_or_it_is_refused(
    place: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """Reported: vLLM #6983 (DoRA), #9280 (modules_to_save); openvino.genai #4180 (unused tensors)."""
    matrices = lora.adapter(tmp_path / "adapter", 1)
    ones = np.ones(lora.WIDTH, np.float32)
    cases = {
        "a layer of another model": (
            f"{lora.PREFIX}.7.self_attn.q_proj.lora_A.weight",
            ones[None],
            "lacks 1 of",
        ),
        "DoRA": (f"{Q}.lora_magnitude_vector", ones, f"the adapter has '{Q}.lora_magnitude_vector'"),
        "a saved module": (
            "base_model.model.lm_head.weight",
            ones[None],
            "the adapter has 'base_model.model.lm_head",
        ),
        "a bias": (f"{Q}.bias", ones, f"the adapter has '{Q}.bias'"),
        "no matrix": (f"{Q}.lora_A.weight", ones, f"the adapter has '{Q}.lora_A.weight'"),
    }
    file = tmp_path / "adapter/adapter_model.safetensors"
    assert unusable(str(file), str(place / "base")) == ""
    for what, (name, values, fault) in cases.items():
        with subtests.test(what):
            write_safetensors(file, {**matrices, name: values})
            assert fault in unusable(str(file), str(place / "base"))


def _header(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _moved(whole: bytes, begin: int, end: int) -> bytes:
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + length])
    header[f"{Q}.lora_A.weight"]["data_offsets"] = [begin, end]
    return _header(json.dumps(header).encode()) + whole[8 + length :]


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "no header": lambda whole: whole[:8],
    "half of it": lambda whole: whole[: len(whole) // 2],
    "one byte short": lambda whole: whole[:-1],
    "behind its end": lambda whole: _moved(whole, 1 << 40, (1 << 40) + 1024),
    "before its begin": lambda whole: _moved(whole, -1024, 0),
    "a list": lambda whole: _header(b"[]"),
    "a number": lambda whole: _header(b"1"),
    "a tensor that is none": lambda whole: _header(b'{"a": null}'),
    "deep": lambda whole: _header(b'{"a": %s}' % DEEP),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_is_refused_by_every_reader(place: Path, tmp_path: Path, what: str) -> None:
    lora.adapter(tmp_path / "adapter", 1)
    file = tmp_path / "adapter/adapter_model.safetensors"
    file.write_bytes(BROKEN[what](file.read_bytes()))
    spec = ImageSpec(str(tmp_path), adapters=(ImageAdapter("ink", str(file), 1.0),))
    for read in (
        lambda: unusable(str(file), str(place / "base")),
        lambda: Tensors(file),
        lambda: Adapters(spec),
    ):
        with pytest.raises(LoadError, match=r"not a \.safetensors file: "):
            read()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"r": 4, "lora_alpha": 2}, 0.5),
        ({"r": 4, "lora_alpha": 2, "use_rslora": True, "rank_pattern": {}, "alpha_pattern": None}, 1.0),
        ({"r": 4, "lora_alpha": "8"}, r"\$\.lora_alpha"),
        ({"r": 0, "lora_alpha": 8}, r"\$\.r"),
        ({"r": 4, "lora_alpha": float("nan")}, "lora_alpha"),
        ({"r": 10**400, "lora_alpha": 8}, "configuration of LoRA: "),
        ({"r": 4, "lora_alpha": 8, "rank_pattern": {"q_proj": 8}}, "rank_pattern: "),
        ({"r": 4, "lora_alpha": 8, "alpha_pattern": {"q_proj": 32}}, "alpha_pattern: "),
    ],
)
def test_the_scale_is_that_of_all_layers(tmp_path: Path, config: object, expected: float | str) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    if isinstance(expected, float):
        assert scaling(tmp_path / "any") == expected
    else:
        with pytest.raises(LoadError, match=expected):
            scaling(tmp_path / "any")


def test_deep_json_is_no_object(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b'{"a": %s}' % DEEP)
    with pytest.raises(LoadError, match="not a JSON object"):
        json_object(tmp_path / "config.json")
    assert json_or_empty(tmp_path / "config.json", dict) == {}
