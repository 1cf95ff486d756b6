"""Whisper by `ovserve pull`: CTranslate2's form is read, and the graph is OVMS's."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from ovserve.errors import InvalidArgument, LoadError
from ovserve.kinds.speech.spec import missing_speech_files
from ovserve.kinds.speech.worker.whisper_weights import CTranslate2Weights
from ovserve.pull.encoder_graph import encoder_graph
from ovserve.pull.graph_file import check_file
from ovserve.pull.hub import RemoteFile, choose
from ovserve.pull.run import Wanted, pull
from tests.speech import LAYERS, WIDTH, Random, tiny_whisper


def quiet(text: str) -> None:
    """Say nothing."""


def ctranslate2(weights: Random) -> bytes:
    """Weights as CTranslate2 writes them: joined projections, float16, names with a zero byte."""
    tensors: dict[str, np.ndarray] = {}

    def pair(here: str, *there: str) -> None:
        tensors[f"{here}/weight"] = np.concatenate([weights.float32(f"{name}.weight") for name in there])
        biases = [
            weights.float32(f"{name}.bias") if f"{name}.bias" in weights else np.zeros(WIDTH, np.float32)
            for name in there
        ]
        tensors[f"{here}/bias"] = np.concatenate(biases)

    def norm(here: str, there: str) -> None:
        tensors[f"{here}/gamma"] = weights.float32(f"{there}.weight")
        tensors[f"{here}/beta"] = weights.float32(f"{there}.bias")

    for side in ("encoder", "decoder"):
        root = f"model.{side}."
        if side == "encoder":
            pair("encoder/conv1", root + "conv1")
            pair("encoder/conv2", root + "conv2")
        else:
            tensors["decoder/embeddings/weight"] = weights.float32(root + "embed_tokens.weight")
        tensors[f"{side}/position_encodings/encodings"] = weights.float32(root + "embed_positions.weight")
        norm(f"{side}/layer_norm", root + "layer_norm")
        for i in range(LAYERS):
            here, there = f"{side}/layer_{i}/", f"{root}layers.{i}."
            norm(here + "self_attention/layer_norm", there + "self_attn_layer_norm")
            pair(here + "self_attention/linear_0", *(f"{there}self_attn.{x}_proj" for x in "qkv"))
            pair(here + "self_attention/linear_1", there + "self_attn.out_proj")
            if side == "decoder":
                norm(here + "attention/layer_norm", there + "encoder_attn_layer_norm")
                pair(here + "attention/linear_0", there + "encoder_attn.q_proj")
                pair(here + "attention/linear_1", *(f"{there}encoder_attn.{x}_proj" for x in "kv"))
                pair(here + "attention/linear_2", there + "encoder_attn.out_proj")
            norm(here + "ffn/layer_norm", there + "final_layer_norm")
            pair(here + "ffn/linear_0", there + "fc1")
            pair(here + "ffn/linear_1", there + "fc2")

    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    made = [struct.pack("<I", 6), text("WhisperSpec"), struct.pack("<II", 3, len(tensors))]
    for name, values in tensors.items():
        data = values.astype("<f2").tobytes()
        shape = struct.pack(f"<B{values.ndim}I", values.ndim, *values.shape)
        made += [text(name), shape, struct.pack("<BI", 4, len(data)), data]
    return b"".join(
        [*made, struct.pack("<I", 1), text("decoder/projection/weight"), text("decoder/embeddings/weight")]
    )


class Kept(Random):
    """Random weights that are the same for a name."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__(vocabulary)
        self._made: dict[str, np.ndarray] = {}

    def float32(self, name: str) -> np.ndarray:
        if name not in self._made:
            self._made[name] = super().float32(name).astype(np.float16).astype(np.float32)
        return self._made[name]


def test_every_tensor_of_ctranslate2_s_form_is_found(tmp_path: Path) -> None:
    weights = Kept(300)
    (tmp_path / "model.bin").write_bytes(ctranslate2(weights))
    read = CTranslate2Weights(tmp_path / "model.bin")
    assert len(weights._made) > 50
    for name, values in weights._made.items():
        assert name in read
        np.testing.assert_array_equal(read.float32(name), values)
    assert "model.decoder.layers.0.self_attn.k_proj.bias" not in read


def test_a_directory_is_converted_and_served_in_place(tmp_path: Path) -> None:
    source = tiny_whisper(tmp_path / "made")
    size = json.loads((source / "config.json").read_text())["vocab_size"]
    (source / "model.bin").write_bytes(ctranslate2(Kept(size)))
    for file in source.glob("openvino_*"):
        file.unlink()
    config = {
        "lang_ids": [258, 259],
        "suppress_ids": [],
        "suppress_ids_begin": [],
        "alignment_heads": [[1, 0]],
    }
    (source / "config.json").write_text(json.dumps(config))
    made = pull(Wanted(str(source), tmp_path / "models", name="ear", task="speech2text"), quiet)
    assert missing_speech_files(made) == []
    generation = json.loads((made / "generation_config.json").read_text())
    assert generation["lang_to_id"] == {"<|startoftranscript|>": 258, "<|en|>": 259}
    assert json.loads((made / "config.json").read_text())["encoder_layers"] == LAYERS
    again = pull(Wanted(str(made), tmp_path / "models", name="there", task="speech2text"), quiet)
    assert f'models_path: "{made}"' in (again / "graph.pbtxt").read_text()


@pytest.mark.parametrize(
    "data", [b"", b"GGUF", b"\x06\0\0\0\x0c\0WhisperSpec\0\3\0\0\0\xff\xff\xff\xff", b"\xff" * 64]
)
def test_another_file_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.bin").write_bytes(data or b"\0")
    with pytest.raises(LoadError, match="not a CTranslate2 model"):
        CTranslate2Weights(tmp_path / "model.bin")


def test_the_graph_of_the_task(tmp_path: Path) -> None:
    text = encoder_graph("speech2text", {"enable_word_timestamps": True, "num_streams": 2}, "./")
    (tmp_path / "graph.pbtxt").write_text(text)
    checked = check_file(tmp_path, "graph.pbtxt")
    (spec,) = checked.engine_specs.values()
    assert (spec.kind, spec.properties) == ("speech_to_text", '{"NUM_STREAMS": "2"}')
    checked.graph.close()
    with pytest.raises(InvalidArgument, match="--pooling is not an option of the task speech2text"):
        encoder_graph("speech2text", {"pooling": "CLS"}, "./")
    with pytest.raises(InvalidArgument, match="whisper-base is a model for speech2text, got rerank"):
        pull(Wanted("whisper-base", tmp_path, task="rerank"), quiet)


def test_the_files_of_a_repository() -> None:
    ir = ["openvino_encoder_model.xml", "openvino_encoder_model.bin", "config.json", "README.md"]
    files = [RemoteFile(name, 1, "", False) for name in ir]
    assert [f.name for f in choose("o/n", files, encoder=True)] == ir[:3]
    ct2 = [RemoteFile(name, 1, "", False) for name in ("model.bin", "tokenizer.json", "vocabulary.txt")]
    assert [f.name for f in choose("o/n", ct2, encoder=True)] == ["model.bin", "tokenizer.json"]
