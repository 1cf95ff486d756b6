"""Our conversion of .gguf files, judged by llama.cpp: logits of each architecture, and tokens of each rule.

Its answers are in tests/vectors/gguf, written by scripts/gguf_vectors.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import openvino
import openvino_genai as ov_genai
import pytest
from openvino import opset13 as ops

from ovserve.engine.host.cpu import processor
from ovserve.engine.model.gguf import read_gguf
from ovserve.engine.model.gguf_forms import EXACT as FORMS_FOR_KERNELS
from ovserve.engine.model.gguf_forms import UNPACKED, WITH_OFFSETS, Form, converted_size, form_of
from ovserve.kinds.text.worker.gguf import convert
from ovserve.kinds.text.worker.gguf.weights import Part, WeightsFile
from ovserve.kinds.text.worker.kernels.attention import replace_attention
from ovserve.kinds.text.worker.kernels.library import open_library
from ovserve.kinds.text.worker.kernels.matmul import FLOATS
from ovserve.kinds.text.worker.paged import model as paged_model
from ovserve.kinds.text.worker.paged.graph import read_paged
from ovserve.kinds.text.worker.paged.model import BLOCK_TOKENS, PagedModel
from ovserve.kinds.text.worker.paged.runner import Runner
from tests.engine.gguf_cases import CASES, IDS, LOGITS, SHOWN, TEXTS, TOKENS, VOCABULARIES, write_vocabulary
from tests.engine.random_gguf import LAYERS, MIXTURES, random_blocks, write

EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "KV_CACHE_PRECISION": "f32",
}


def converted(file: Path, *steps: str) -> Path:
    """Convert it in this process: one of its own takes 0.4 s to import OpenVINO, as often as there are cases."""
    directory = file.parent / "-".join(("converted", *steps))
    directory.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["convert", str(file), str(directory), *steps])
        convert.main()
    return directory


def logits(directory: Path, parts: list[int], name: str = "openvino_model.xml") -> np.ndarray:
    """Return those of IDS, read in parts, so that later ones use the cache."""
    core = openvino.Core()
    request = core.compile_model(directory / name, "CPU", EXACT).create_infer_request()
    made, at = [], 0
    for count in parts:
        end = at + count
        request.infer({
            "input_ids": np.array([IDS[at:end]]),
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(at, end)[None],
            "beam_idx": np.zeros(1, np.int32),
        })  # fmt: skip
        made.append(request.get_tensor("logits").data[0].copy())
        at = end
    return np.concatenate(made)


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The name of a case, and its model converted."""
    name = request.param
    return name, converted(write(tmp_path_factory.mktemp("case") / "m.gguf", **CASES[name]), "merge")


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_logits_are_those_of_llama_cpp(case: tuple[str, Path]) -> None:
    name, directory = case
    wanted = np.load(LOGITS)[name]
    for parts in ([200], [60, 1, 139]):
        found = logits(directory, parts)[SHOWN]
        assert np.abs(found - wanted).max() < 1e-3 * wanted.std()


def paged_logits(model: PagedModel) -> np.ndarray:
    """Return those of IDS at SHOWN."""
    model.compile()
    model.allocate(16)
    count = len(IDS)
    runner = model.runner
    runner.bind("input_ids", np.array(IDS))
    runner.bind("position_ids", np.arange(count))
    blocks = -(-count // BLOCK_TOKENS)
    for port, values in (
        ("past_lens", [0]),
        ("subsequence_begins", [0, count]),
        ("block_indices", range(blocks)),
        ("block_indices_begins", [0, blocks]),
        ("rows", SHOWN),
    ):
        runner.bind(port, np.array(values, np.int32))
    return runner.run(count)


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_logits_of_the_paged_engine_too(case: tuple[str, Path]) -> None:
    name, directory = case
    wanted = np.load(LOGITS)[name]
    found = paged_logits(PagedModel(directory / "openvino_model.xml", "CPU", EXACT))
    assert np.abs(found - wanted).max() < 1e-3 * wanted.std()


def unpacked_weights(model: PagedModel) -> int:
    """Return how many numbers the products of a compiled model read from constants in f32."""
    nodes = model.compiled.get_runtime_model().get_ordered_ops()
    products = [n for n in nodes if n.get_rt_info()["layerType"].astype(str) == "FullyConnected"]
    assert products
    weights = [node.input_value(1) for node in products]
    return sum(
        prod(each.get_shape())
        for each in weights
        if each.get_element_type() == openvino.Type.f32
        and each.get_node().get_rt_info()["layerType"].astype(str) == "Const"
    )


def is_tied(tensors: dict[str, np.ndarray]) -> None:
    del tensors["output.weight"]


@pytest.mark.parametrize("kind", list(FORMS_FOR_KERNELS))
@pytest.mark.parametrize("change", [is_tied, lambda tensors: None], ids=["tied", "not tied"])
def test_models_for_our_kernels(kind: str, change: Callable[[Any], None], tmp_path: Path) -> None:
    """Judged by ggml's own numbers in f32, of which llama.cpp's logits judge the rest of the conversion."""
    options: dict[str, Any] = {
        "architecture": "qwen3",
        "kind": gguf.GGMLQuantizationType[kind],
        "tensors": change,
    }
    plain = converted(write(tmp_path / "f32.gguf", **options, dequantised=True), "merge")
    wanted = paged_logits(PagedModel(plain / "openvino_model.xml", "CPU", EXACT))
    file = write(tmp_path / "m.gguf", **options)
    directory = converted(file, "exact", "merge")
    tensors = list(read_gguf(file).tensors.values())
    size = converted_size(tensors, exact=True)
    assert 0 <= (directory / "openvino_model.bin").stat().st_size - size < 30_000  # tables, and alignment
    most = (
        0.05 if change is not is_tied or form_of(tensors[0], exact=True).offsets else 0.005
    )  # table in 8 bits
    assert np.abs(logits(directory, [200])[SHOWN] - wanted).max() < most * wanted.std()
    model = PagedModel(directory / "openvino_model.xml", "CPU", EXACT)  # widened
    assert np.abs(paged_logits(model) - wanted).max() < most * wanted.std()
    assert unpacked_weights(model) <= sum(prod(t.dims) for t in tensors if len(t.dims) > 1) / 16  # offsets
    if processor().has_kernels:
        ours = PagedModel(directory / "openvino_model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        assert 0.9 * size < ours.packed_bytes + sum(t.size for t in tensors if len(t.dims) == 1)
        assert np.linalg.norm(paged_logits(ours) - wanted) < 0.03 * np.linalg.norm(wanted)  # int8, bf16


KINDS = {"gpt-oss": "MXFP4", "deepseek2": "Q8_0"}


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [("qwen3moe", kind) for kind in ("Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q8_0", "F16", "BF16", "MXFP4")]
    # The rows of deepseek2's latent part are shorter than a block of 256.
    + [(name, KINDS.get(name, "Q4_K")) for name in MIXTURES if name != "qwen3moe"],
)
def test_experts_for_our_kernels(architecture: str, kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"architecture": architecture, "kind": gguf.GGMLQuantizationType[kind]}
    plain = converted(write(tmp_path / "f32.gguf", **options, dequantised=True), "merge")
    wanted = paged_logits(PagedModel(plain / "openvino_model.xml", "CPU", EXACT))
    directory = converted(write(tmp_path / "m.gguf", **options), "exact", "merge")
    model = PagedModel(directory / "openvino_model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    kinds = [node.get_type_name() for node in model._read.get_ordered_ops()]
    mixing = LAYERS - MIXTURES[architecture].get("leading_dense_block_count", 0)
    assert kinds.count("PackedExperts") == 3 * mixing
    assert np.linalg.norm(paged_logits(model) - wanted) < 0.03 * np.linalg.norm(wanted)  # int8, bf16


@pytest.mark.parametrize("tiles", [True, False])
def test_experts_take_our_kernels_with_amx_too(
    tiles: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "m.gguf", "qwen3moe", gguf.GGMLQuantizationType.Q4_K)
    network = converted(file, "merge") / "openvino_model.xml"
    amx = msgspec.structs.replace(processor(), flags=processor().flags | {"amx_bf16"})
    monkeypatch.setattr(paged_model, "processor", lambda: amx)
    model = PagedModel(network, "CPU", {}, tiles=tiles)
    kinds = [node.get_type_name() for node in model._read.get_ordered_ops()]
    assert kinds.count("PackedExperts") == 3 * LAYERS
    assert not model._in_f32, "forms for matrix tiles are not made"


@pytest.mark.skipif(not processor().has_kernels, reason="OpenVINO's kernels compute on this processor")
def test_offsets_may_be_smaller_than_f16_can_be(tmp_path: Path) -> None:
    def shrink(tensors: dict[str, np.ndarray]) -> None:
        for tensor in tensors.values():
            tensor *= 2**-6 if tensor.ndim == 2 else 1

    file = write(
        tmp_path / "m.gguf", architecture="qwen3", kind=gguf.GGMLQuantizationType.Q4_1, tensors=shrink
    )
    model = PagedModel(converted(file, "merge") / "openvino_model.xml", "CPU", {})
    products = [node for node in model._read.get_ordered_ops() if node.get_type_name() == "PackedMatMul"]
    tensors = read_gguf(file).tensors.values()
    matrices = [t for t in tensors if len(t.dims) == 2 and t.name != "token_embd.weight"]
    merged = sum(t.name.endswith("attn_k.weight") for t in matrices) * 2  # q, k and v are one
    assert len(products) == len(matrices) - merged


@pytest.mark.skipif(not processor().has_kernels, reason="OpenVINO's kernels compute on this processor")
@pytest.mark.parametrize("case", CASES, indirect=True)
def test_logits_of_decodes_too(case: tuple[str, Path]) -> None:
    """Each token is a sequence of its own, and all have one block table. The cache is in bf16."""
    name, directory = case
    wanted, count = np.load(LOGITS)[name], len(IDS)
    core, blocks = openvino.Core(), -(-len(IDS) // BLOCK_TOKENS)
    model = read_paged(core, directory / "openvino_model.xml")
    shapes = replace_attention(model, open_library(), BLOCK_TOKENS)
    zeros = {name: np.zeros((blocks, *shape), np.uint8) for name, shape in shapes.items()}
    caches = {name: openvino.Tensor(array, shared_memory=True) for name, array in zeros.items()}
    exact = {key: value for key, value in EXACT.items() if key != "KV_CACHE_PRECISION"}
    runner = Runner(core.compile_model(model, "CPU", exact), caches)
    runner.bind("input_ids", np.array(IDS))
    runner.bind("position_ids", np.arange(count))
    for port, values in (
        ("past_lens", np.arange(count)),
        ("subsequence_begins", np.arange(count + 1)),
        ("block_indices", np.tile(np.arange(blocks), count)),
        ("block_indices_begins", np.arange(count + 1) * blocks),
        ("rows", SHOWN),
    ):
        runner.bind(port, np.array(values, np.int32))
    found = runner.run(count)
    # Rounded keys and values make 0.0001 to 0.016 of it; a rule that is left out makes 0.19 and more.
    assert (found - wanted).std() < 0.03 * wanted.std()


def test_the_cases_differ() -> None:
    """A case whose key is ignored would have the logits of another."""
    made = np.load(LOGITS)
    for name in CASES:
        plain = name.partition(",")[0]
        if plain != name:
            assert np.abs(made[name] - made[plain]).max() > 0.01 * made[plain].std(), name


# ---- tokens


@pytest.mark.parametrize("name", VOCABULARIES)
def test_tokens_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    directory = converted(write_vocabulary(tmp_path / "m.gguf", name), "merge")
    tokenizer = ov_genai.Tokenizer(directory)
    wanted: list[list[int]] = json.loads(TOKENS.read_text())[name]
    begins = name != "smollm"
    assert (wanted[0][0] == 1) is begins
    for text, ids in zip(TEXTS, wanted, strict=True):
        if name == "qwen2" and unicodedata.normalize("NFC", text) != text:
            continue  # llama.cpp does not normalise, though the model's own tokenizer does
        if name in ("tekken", "gpt-4o", "kimi-k2") and any(unicodedata.category(c)[0] == "M" for c in text):
            continue  # llama.cpp's expression for words lacks marks, which that of the model has
        if name == "kimi-k2" and "CamelCase" in text:
            continue  # llama.cpp's own code for it does not split there, which the model's expression does
        if name in ("deepseek-coder", "deepseek-llm") and "\u2028" in text:
            continue  # llama.cpp does not split there, which the model's own expressions do
        assert tokenizer.encode(text, add_special_tokens=True).input_ids.data[0].tolist() == ids, text
        alone = tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist()
        assert alone == ids[begins:], text
        if name == "sentencepiece" and "<|user|>" in text:
            continue  # what follows a special token begins with a space, as a text does
        assert tokenizer.decode(alone, skip_special_tokens=False) == text
        plain = text.replace("<|user|>", "").replace("<|end|>", "")
        assert tokenizer.decode(ids, skip_special_tokens=True) == plain


PHI = {"</s>": 4, "<s>": 3, "<|assistant|>": 3}
# Vocabulary and what is changed, a text, and its tokens after the first, as llama.cpp b11434 makes them.
ODD_FILES: list[tuple[str, dict[str, Any], str, list[str]]] = [
    ("qwen2", {"more": {"<|im_end|>": 1}}, "<|im_end|>x", ["<|im_end|>", "x"]),
    ("qwen2", {"more": {"<|im_end|>": 4}}, "x<|im_end|>", ["x", "<|im_end|>"]),
    ("qwen2", {"more": {"<|eot_id|>": 1}, "token_type": None}, "x<|eot_id|>", ["x", "<|eot_id|>"]),
    ("qwen2", {"token_type": None}, "x", ["x"]),
    ("sentencepiece", {"token_type": None}, "x", ["▁", "x"]),
    ("sentencepiece", {}, "<unk>", ["<unk>"]),
    ("sentencepiece", {"more": PHI, "title": "Phi-3-mini"}, "<|user|>\nHi", ["<|user|>", "▁", "H", "i"]),
    ("sentencepiece", {"more": PHI, "title": "Phi3"}, "<|end|> \n<|assistant|>\n", ["<|end|>", "<|assistant|>"]),
    ("sentencepiece", {"more": PHI, "title": "phi-3"}, "<s>\n", ["<s>", "▁", "\n"]),
    ("sentencepiece", {"more": PHI, "title": "llama"}, "<|user|>\n", ["<|user|>", "▁", "\n"]),
    ("qwen2", {"padding_token_id": 1 << 20}, "x", ["x"]),
    ("qwen2", {"padding_token_id": (1 << 32) - 1, "eot_token_id": (1 << 32) - 1}, "x", ["x"]),
    ("qwen2", {"more": {"日": 1, "日日": 1}, "merges": ["日 日", "Ġ Ġ"]}, "x", ["x"]),
]  # fmt: skip


def test_files_that_name_less_than_they_should(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for i, (name, changed, text, pieces) in enumerate(ODD_FILES):
        directory = tmp_path / str(i)
        directory.mkdir()
        with subtests.test(f"{name} {changed}"):
            file = write_vocabulary(directory / "m.gguf", name, **changed)
            tokens = read_gguf(file).array("tokenizer.ggml.tokens")
            tokenizer = ov_genai.Tokenizer(converted(file, "merge"))
            ids = tokenizer.encode(text, add_special_tokens=True).input_ids.data[0].tolist()
            assert [tokens[id_] for id_ in ids[1:]] == pieces


def test_texts_are_normalised_for_qwen(tmp_path: Path) -> None:
    tokenizer = ov_genai.Tokenizer(converted(write_vocabulary(tmp_path / "m.gguf", "qwen2"), "merge"))

    def ids(text: str) -> list[int]:
        found: list[int] = tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist()
        return found

    assert ids("e\u0301") == ids("\u00e9")


def test_the_rules_differ() -> None:
    made = json.loads(TOKENS.read_text())
    rows = {json.dumps(ids) for name, ids in made.items() if name != "dbrx"}  # it has the rule of llama-bpe
    assert len(rows) == len(made) - 1


# ---- weights


def unpacked(path: Path, form: Form) -> np.ndarray:
    """Write the only tensor of a file, and return the numbers that the constants stand for."""
    (tensor,) = read_gguf(path).tensors.values()
    target = path.with_suffix(".bin")
    with target.open("wb") as file:
        matrix = WeightsFile(file).add([Part(tensor)], form)
    data = target.read_bytes()

    def numbers(constant: Any) -> np.ndarray:
        raw = np.frombuffer(data, np.uint8, constant.size, constant.offset)
        if constant.type in ("u4", "f4e2m1"):
            raw = np.stack([raw & 15, raw >> 4], -1)
        if constant.type == "f4e2m1":
            raw = np.array(FLOATS, np.float16)[raw] / 2
        if constant.type == "f8e8m0":
            raw = np.exp2(raw - 127.0)
        if constant.type in ("u1", "u6"):
            raw = of_bits(raw, constant)
        kinds = {"f16": np.float16, "f32": np.float32, "i8": np.int8}
        read = raw.view(kinds[constant.type]) if constant.type in kinds else raw
        return read.reshape(constant.shape).astype(np.float32)

    def of_groups(factors: Any, scales: Any) -> np.ndarray:
        wide = numbers(scales) if factors is None else numbers(factors) * numbers(scales)
        return wide.reshape(matrix.rows, -1, 1)

    values = numbers(matrix.values)
    if matrix.high is not None:
        values = values + 16 * numbers(matrix.high)
    if matrix.scales is not None:
        zero = numbers(matrix.zeros) if matrix.zeros is not None else form.zero or 0
        scales = of_groups(matrix.factors, matrix.scales)
        values = (values - zero) * (scales if form.group else scales[..., 0])
    if matrix.offsets is not None:
        values = values + of_groups(matrix.offsets, matrix.offset_scales)
    return values.reshape(matrix.rows, matrix.columns)


def of_bits(packed: np.ndarray, constant: Any) -> np.ndarray:
    """Have OpenVINO unpack numbers of one or six bits."""
    kind = getattr(openvino.Type, constant.type)
    tensor = openvino.Tensor(packed, openvino.Shape([int(np.prod(constant.shape))]), kind)
    model = openvino.Model([ops.result(ops.convert(openvino.op.Constant(tensor), "u8"))], [])
    return openvino.Core().compile_model(model, "CPU")({})[0]


def one_tensor(path: Path, kind: str, data: np.ndarray) -> np.ndarray:
    """Write it, and return what ggml's package unpacks of it."""
    type_ = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("t", data, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return gguf.quants.dequantize(data, type_)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K", "Q8_0"])
def test_what_has_a_form_of_its_own_keeps_its_values(kind: str, tmp_path: Path) -> None:
    wanted = one_tensor(tmp_path / "m.gguf", kind, random_blocks(kind, 300, 512))
    (tensor,) = read_gguf(tmp_path / "m.gguf").tensors.values()
    found = unpacked(tmp_path / "m.gguf", form_of(tensor))
    largest = np.abs(wanted).max()
    step = largest / (127 if kind == "Q8_0" else 15)
    offset = largest / 254 if kind in WITH_OFFSETS else 0  # half a step of int8
    assert np.abs(found - wanted).max() < 0.02 * step + offset  # scales in f16


@pytest.mark.parametrize(
    "kind", ["Q5_0", "Q5_1", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "Q2_K", "Q3_K"]
)
def test_other_types_lose_less_than_a_step_of_eight_bits(kind: str, tmp_path: Path) -> None:
    wanted = one_tensor(tmp_path / "m.gguf", kind, random_blocks(kind, 40, 512))
    (tensor,) = read_gguf(tmp_path / "m.gguf").tensors.values()
    found = unpacked(tmp_path / "m.gguf", form_of(tensor))
    grouped = np.abs(wanted).reshape(40, -1, 128).max(-1, keepdims=True)
    assert (np.abs(found - wanted).reshape(40, -1, 128) <= 0.51 * grouped / 127 * 1.001).all()


@pytest.mark.parametrize("kind", list(FORMS_FOR_KERNELS))
def test_numbers_of_the_file_stay_for_our_kernels(kind: str, tmp_path: Path) -> None:
    wanted = one_tensor(tmp_path / "m.gguf", kind, random_blocks(kind, 300, 512))
    (tensor,) = read_gguf(tmp_path / "m.gguf").tensors.values()
    found = unpacked(tmp_path / "m.gguf", form_of(tensor, exact=True))
    assert np.abs(found - wanted).max() <= 1e-6 * np.abs(wanted).max()


def test_groups_of_one_value_and_of_zeros(tmp_path: Path) -> None:
    data = random_blocks("Q4_1", 2, 64).reshape(2, 2, 20)
    data[0, 0, :2] = 0  # no scale: all are the offset
    data[1, 1, :4] = 0
    wanted = one_tensor(tmp_path / "m.gguf", "Q4_1", data.reshape(2, -1))
    (tensor,) = read_gguf(tmp_path / "m.gguf").tensors.values()
    found = unpacked(tmp_path / "m.gguf", form_of(tensor))
    assert np.isfinite(found).all()
    assert np.allclose(found, wanted, atol=1e-3)


def test_unpacked(tmp_path: Path) -> None:
    wanted = one_tensor(tmp_path / "m.gguf", "Q4_K", random_blocks("Q4_K", 300, 512))
    found = unpacked(tmp_path / "m.gguf", UNPACKED)
    assert np.abs(found - wanted).max() < np.abs(wanted).max() / 250


def test_steps_change_the_form_and_not_the_model(tmp_path: Path) -> None:
    file = write(tmp_path / "m.gguf", "qwen2", gguf.GGMLQuantizationType.Q8_0)
    plain: np.ndarray | None = None
    for steps in ((), ("merge",)):
        directory = converted(file, *steps)
        network = (directory / "openvino_model.xml").read_text()
        assert (network.count('type="VariadicSplit"') == 2) is ("merge" in steps), steps
        found = logits(directory, [200])
        plain = found if plain is None else plain
        assert np.abs(found - plain).max() < 0.05 * plain.std(), steps


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_unpacked_weights_have_the_packed_ones_beside_them(kind: str, tmp_path: Path) -> None:
    file = write(tmp_path / "m.gguf", "qwen3", gguf.GGMLQuantizationType[kind], biases=True)
    directory = converted(file, "fp16")
    assert 'element_type="u4"' not in (directory / "openvino_model.xml").read_text()
    packed = logits(directory, [200], "openvino_model_packed.xml")
    tolerance = 0.01 if kind == "Q4_0" else 0.02  # offsets in int8
    assert np.abs(logits(directory, [200]) - packed).max() < tolerance * packed.std()


def test_memory_and_disk_of_a_conversion(tmp_path: Path) -> None:
    """The memory does not grow with the file."""
    program = (
        "import re, runpy\n"
        "runpy.run_module('ovserve.kinds.text.worker.gguf.convert', run_name='__main__')\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    peaks = []
    for vocabulary in (320, 200_000):
        file = write(
            tmp_path / f"{vocabulary}.gguf", kind=gguf.GGMLQuantizationType.Q8_0, vocabulary=vocabulary
        )
        target = tmp_path / f"{vocabulary}"
        target.mkdir()
        command = [sys.executable, "-c", program, str(file), str(target)]
        peaks.append(int(subprocess.run(command, check=True, capture_output=True).stdout) << 10)
    size = file.stat().st_size
    assert size > 100 << 20
    assert peaks[1] - peaks[0] < size / 2
    written = (target / "openvino_model.bin").stat().st_size
    tensors = read_gguf(file).tensors.values()
    assert converted_size(tensors) <= written < converted_size(tensors) + (1 << 20)
