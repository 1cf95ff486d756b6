"""What a .gguf file lacks is named before anything of it is loaded, by `check`, `show`, `pull` and `serve` alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ovserve.engine.model.files import gguf_models, model_in, read_model_files
from ovserve.engine.model.gguf import KINDS, GGUFError, read_gguf
from ovserve.engine.model.gguf_model import ARCHITECTURES, SIGMOID, SOFTMAX, read_model, read_parameters
from ovserve.errors import LoadError
from ovserve.serving.model_size import weights
from tests.engine import random_gguf


def test_sizes_of_types_are_those_of_the_package() -> None:
    known = {int(kind): (kind.name, *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    assert {number: tuple(kind) for number, kind in KINDS.items()}.items() <= known.items()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_architecture_is_read(architecture: str, tmp_path: Path) -> None:
    model = read_model(random_gguf.write(tmp_path / "m.gguf", architecture))
    assert (model.name, model.parameters.layers, model.tokens.size) == (architecture, 2, 320)


def test_the_first_files_of_glm_flash_have_the_gates_that_llama_cpp_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = random_gguf.write(tmp_path / "m.gguf", "deepseek2")
    assert (mixture := read_model(file).parameters.mixture) is not None
    assert mixture.gating == SOFTMAX
    monkeypatch.setattr("ovserve.engine.model.gguf_model.GLM_FLASH", {(2, 320)})
    assert (mixture := read_model(file).parameters.mixture) is not None
    assert mixture.gating == SIGMOID


def without(name: str) -> Callable[[dict[str, np.ndarray]], None]:
    return lambda tensors: tensors.__delitem__(name)


def shaped(name: str, *shape: int) -> Callable[[dict[str, np.ndarray]], None]:
    return lambda tensors: tensors.update({name: np.zeros(shape, np.float32)})


BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"architecture": "mamba"},
        r"general.architecture: 'mamba' is not supported; supported are llama, qwen2",
    ),
    ({"keys": {"block_count": None}}, r"llama.block_count is missing"),
    ({"keys": {"block_count": 0}}, r"llama.block_count: expected a number from 1 to 1000, got 0"),
    ({"keys": {"block_count": 3}}, r"the tensor blk.2.attn_norm.weight is missing"),
    ({"keys": {"context_length": "long"}}, r"llama.context_length: expected a number .*, got 'long'"),
    ({"keys": {"attention.head_count_kv": 3}}, r"head_count: 4 is not a multiple of head_count_kv, 3"),
    (
        {"keys": {"attention.value_length": 32}},
        r"attention.value_length: other than attention.key_length, 64",
    ),
    ({"keys": {"attention.head_count_kv": [2, 1]}}, r"head_count_kv differs between layers"),
    ({"keys": {"expert_count": 8}}, r"llama.expert_used_count is missing"),
    (
        {"keys": {"expert_count": 8, "expert_used_count": 9}},
        r"expert_used_count: expected a number from 1 to 8, got 9",
    ),
    (
        {"keys": {"expert_count": 8, "expert_used_count": 2}},
        r"the tensor blk.0.ffn_gate_inp.weight is missing",
    ),
    (
        {"experts": True, "keys": {"expert_gating_func": 4}},
        r"expert_gating_func: expected one of \(1, 2, 3\), got 4",
    ),
    (
        {"experts": True, "keys": {"expert_group_count": 4}},
        r"expert_group_count: 4 do not share 6 experts, two or more each",
    ),
    (
        {"experts": True, "keys": {"expert_group_count": 3, "expert_group_used_count": 1}},
        r"expert_used_count: 3, and expert_group_used_count leaves 2",
    ),
    (
        {"architecture": "deepseek2", "keys": {"rope.dimension_count": 96}},
        r"rope.dimension_count: expected less than the size of a key, 96",
    ),
    (
        {"architecture": "deepseek2", "keys": {"attention.kv_lora_rank": 100}},
        r"attention.kv_lora_rank: 100 is not a multiple of 32",
    ),
    (
        {"architecture": "deepseek2", "keys": {"attention.temperature_scale": 0.1}},
        r"deepseek2.attention.temperature_scale is not supported",
    ),
    (
        {"experts": True, "keys": {"expert_feed_forward_length": 500}},
        r"the width of an expert, 500, is not a multiple of 32",
    ),
    (
        {"tensors": without("blk.0.ffn_gate_shexp.weight"), "architecture": "qwen2moe"},
        r"the tensor blk.0.ffn_gate_shexp.weight is missing",
    ),
    (
        {"tensors": without("blk.1.exp_probs_b.bias"), "architecture": "glm4moe"},
        r"the tensor blk.1.exp_probs_b.bias is missing",
    ),
    (
        {"architecture": "gpt-oss", "tensors": shaped("blk.0.attn_sinks.weight", 8)},
        r"blk.0.attn_sinks.weight has the shape \[8\], expected \[4\]",
    ),
    (
        {"architecture": "glm4moe", "keys": {"nextn_predict_layers": 2}},
        r"glm4moe.block_count: expected a number from 3 to 1000, got 2",
    ),
    ({"architecture": "qwen3moe", "keys": {"expert_count": None}}, r"qwen3moe.expert_count is missing"),
    ({"strings": {"general.type": "adapter"}}, r"it is a LoRA adapter, and not a model; name the .gguf file"),
    ({"strings": {"general.type": "mmproj"}}, r"it is an image projector, and not a model"),
    ({"keys": {"attention.causal": False}}, r"attention.causal: false is not supported"),
    ({"keys": {"attn_logit_softcapping": 50.0}}, r"llama.attn_logit_softcapping is not supported"),
    ({"keys": {"rope.dimension_count": 63}}, r"rope.dimension_count: expected an even number, got 63"),
    ({"keys": {"rope.scaling.type": "dynamic"}}, r"rope.scaling.type: expected one of none, linear, yarn"),
    ({"tensors": without("blk.1.ffn_up.weight")}, r"the tensor blk.1.ffn_up.weight is missing"),
    ({"tensors": without("token_embd.weight")}, r"the tensor token_embd.weight is missing"),
    (
        {"tensors": shaped("blk.0.attn_q.weight", 64, 256)},
        r"blk.0.attn_q.weight has the shape \[256, 64\], expected",
    ),
    (
        {"tensors": shaped("blk.0.attn_sinks.weight", 4)},
        r"blk.0.attn_sinks.weight is not supported for .*'llama'",
    ),
    ({"tokens": {"model": "bert"}}, r"tokenizer.ggml.model: expected gpt2 or llama, got 'bert'"),
    ({"tokens": {"model": None}}, r"tokenizer.ggml.model: .* got None"),
    ({"tokens": {"pre": "klingon"}}, r"tokenizer.ggml.pre: 'klingon' is not known; known are default"),
    ({"tokens": {"merges": None}}, r"tokenizer.ggml.merges is missing"),
    ({"tokens": {"tokens": None}}, r"tokenizer.ggml.tokens is missing"),
    (
        {"tokens": {"tokens": ["a"] * 321}},
        r"tokenizer.ggml.tokens: 321 tokens, and token_embd.weight has 320 rows",
    ),
    ({"tokens": {"token_type": [1, 2]}}, r"tokenizer.ggml.token_type: expected one for each of 320 tokens"),
    (
        {"tokens": {"eos_token_id": 320}},
        r"tokenizer.ggml.eos_token_id: expected the number .* below 320, got 320",
    ),
    (
        {"tokens": {"bos_token_id": None, "add_bos_token": True}},
        r"add_bos_token: true, and there is no bos_token_id",
    ),
    ({"tokens": {"model": "llama"}}, r"tokenizer.ggml.scores is missing"),
]


@pytest.mark.parametrize(("changed", "said"), BAD, ids=[said[:40] for _, said in BAD])
def test_what_is_wrong_is_named(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = random_gguf.write(tmp_path / "m.gguf", **changed)
    with pytest.raises(LoadError, match=said) as raised:
        read_model_files(str(path))
    assert "\n" not in str(raised.value)


def test_values_that_files_give_otherwise(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """As llama.cpp b11434 reads them: a list with a value per layer, and what Gemma's files do not say."""
    cases: list[tuple[str, dict[str, Any], dict[str, float]]] = [
        ("llama", {"attention.head_count": [4, 4], "feed_forward_length": [512, 512]}, {"heads": 4, "inner": 512}),
        ("gemma3", {}, {"windows": 6, "attention_scale": 0}),
        ("gemma3", {"attention.sliding_window_pattern": 3}, {"windows": 3}),
        ("gemma3", {"block_count": 62}, {"attention_scale": 1 / 8}),
    ]  # fmt: skip
    for architecture, keys, expected in cases:
        with subtests.test(f"{architecture} {keys}"):
            path = random_gguf.write(tmp_path / "m.gguf", architecture, keys=keys)
            parameters = read_parameters(read_gguf(path), architecture)
            assert {name: getattr(parameters, name) for name in expected} == expected


def test_tokens_that_end_a_turn_are_known_without_a_name(tmp_path: Path) -> None:
    """As in llama.cpp: https://github.com/ggml-org/llama.cpp/issues/9606."""
    tokens = random_gguf.byte_level_tokens()
    tokens["tokens"][300:303] = ["<|end|>", "<|im_end|>", "</s>"]
    tokens["token_type"][301] = 1
    named = {"eot_token_id": 310, "eom_token_id": (1 << 32) - 1}
    path = random_gguf.write(tmp_path / "m.gguf", tokens=tokens | named)
    assert read_model_files(str(path)).end_token_ids == (257, 310, 300, 301)
    tokens["tokens"][302:304] = ["<|call|>", "<|return|>"]  # then "<|end|>" ends a message of several
    path = random_gguf.write(tmp_path / "harmony.gguf", tokens=tokens | {"eot_token_id": 300})
    assert read_model_files(str(path)).end_token_ids == (257, 301, 302, 303)


def test_a_file_that_is_cut_within_its_last_tensor(tmp_path: Path) -> None:
    path = random_gguf.write(tmp_path / "m.gguf")
    whole = path.read_bytes()
    last = max(read_gguf(path).tensors.values(), key=lambda tensor: tensor.begin)
    path.write_bytes(whole[: last.begin + last.size])  # without the padding behind it
    read_model(path)
    path.write_bytes(whole[: last.begin + last.size - 1])
    with pytest.raises(GGUFError, match=rf"truncated: it has \d+ bytes, and its tensor {last.name} ends at"):
        read_model(path)


def test_a_type_that_the_file_names_and_that_there_is_not(tmp_path: Path) -> None:
    path = random_gguf.write(tmp_path / "m.gguf")
    data = bytearray(path.read_bytes())
    at = data.index(b"blk.0.ffn_up.weight") + len("blk.0.ffn_up.weight") + 4 + 16
    data[at : at + 4] = (77).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(GGUFError, match="tensor blk.0.ffn_up.weight is of the type 77, which is not known"):
        read_model(path)


def test_vectors_are_not_quantised(tmp_path: Path) -> None:
    path = random_gguf.write(tmp_path / "m.gguf")
    data = bytearray(path.read_bytes())
    at = data.index(b"output_norm.weight") + len("output_norm.weight") + 4 + 8
    data[at : at + 4] = (8).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(
        GGUFError, match="output_norm.weight is of the type Q8_0; supported are F32, F16, BF16"
    ):
        read_model(path)


# ---- models in several files


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """A model in three files, as llama-gguf-split writes them."""
    (tmp_path / "split").mkdir()
    return random_gguf.split(random_gguf.write(tmp_path / "whole.gguf"), tmp_path / "split", 3)


def test_a_model_in_several_files_is_read_as_one(parts: list[Path], tmp_path: Path) -> None:
    model = read_model(parts[0])
    assert model.gguf.files == tuple(parts)
    assert set(model.gguf.tensors) == set(read_gguf(tmp_path / "whole.gguf").tensors)
    assert weights(str(parts[0])) == sum(part.stat().st_size for part in parts)
    (parts[0].parent / "mmproj-model-f16.gguf").touch()  # a projector of images
    assert gguf_models(parts[0].parent) == parts[:1]
    assert model_in(parts[0].parent) == parts[0]


def test_parts_that_are_missing_mixed_up_or_given_alone(parts: list[Path]) -> None:
    with pytest.raises(GGUFError, match=r"it is part 00002 of 3; give the first, m-00001-of-00003.gguf"):
        read_model(parts[1])
    renamed = parts[0].rename(parts[0].with_name("m.gguf"))
    with pytest.raises(GGUFError, match=r"3 files, whose names must end in -00001-of-00003.gguf"):
        read_model(renamed)
    renamed.rename(parts[0])
    third = parts[2].rename(parts[2].with_name("x"))
    with pytest.raises(GGUFError, match=r"in 3 files, and m-00003-of-00003.gguf is not next to it"):
        read_model(parts[0])
    parts[2].write_bytes(parts[1].read_bytes())
    with pytest.raises(GGUFError, match=r"m-00003-of-00003.gguf: split.no is 1, expected 2"):
        read_model(parts[0])
    parts[2].write_bytes(b"")
    with pytest.raises(GGUFError, match=r"m-00003-of-00003.gguf: the file is empty"):
        read_model(parts[0])
    third.rename(parts[2])
    read_model(parts[0])


# ---- rope


@pytest.mark.parametrize(
    ("keys", "length", "factors"),
    [
        ({}, 512, ""),
        ({"rope.scaling.original_context_length": 128}, 512, "rope_factors_long.weight"),
        ({"rope.scaling.original_context_length": 1024}, 512, "rope_factors_short.weight"),
        ({"attention.sliding_window": 255}, 255, ""),  # no layer sees more, so more is not served
    ],
)
def test_context_and_factors_of_phi3(keys: dict[str, Any], length: int, factors: str, tmp_path: Path) -> None:
    def add(tensors: dict[str, np.ndarray]) -> None:
        if factors:
            for name in ("long", "short"):
                tensors[f"rope_factors_{name}.weight"] = np.ones(32, np.float32)

    model = read_model(random_gguf.write(tmp_path / "m.gguf", "phi3", keys=keys, tensors=add))
    assert (model.parameters.length, model.parameters.rope.factors) == (length, factors)
