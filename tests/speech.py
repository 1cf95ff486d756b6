"""Speech for tests: a recording, a tiny random Whisper model that needs no download, and the real one."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conftest import ROOT

RECORDING = ROOT / "tests/vectors/speech/harbour.ogg"  # espeak-ng's voice
SAID = "The ship left the harbour in the morning. Nobody knew when it would return."
WHISPER = ROOT / "models/whisper-base"
RATE = 16_000
WIDTH, LAYERS, TIMES = 64, 2, 1501
END = 257  # the id of <|endoftext|>: it follows 256 bytes and "th"
HEARD = 128  # tokens of a piece. What is random seldom ends before the 440 that it may have, in four times as long.


class Random:
    """The weights of a tiny Whisper model: random, and the same each time. After HEARD tokens it hears the end."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._drawn = np.random.default_rng(2)

    def __contains__(self, name: str) -> bool:
        return not name.endswith("k_proj.bias")

    def float32(self, name: str) -> NDArray[np.float32]:
        rows = {"fc1": 4 * WIDTH, "embed_tokens": self._vocabulary}
        shape: tuple[int, ...] = (next((n for part, n in rows.items() if part in name), WIDTH),)
        if "embed_positions" in name:
            shape = (1500 if "encoder" in name else 448, WIDTH)
        elif "conv" in name and name.endswith("weight"):
            shape = (WIDTH, 80 if "conv1" in name else WIDTH, 3)
        elif name.endswith("weight") and "norm" not in name:
            shape = (*shape, 4 * WIDTH if "fc2" in name else WIDTH)
        drawn = self._drawn.normal(0, 0.3, shape).astype(np.float32)
        direction = np.resize(np.float32([1, -1]), WIDTH)
        if "embed_tokens" in name:
            drawn[END] = 0.3 * direction
        elif "decoder.embed_positions" in name:
            drawn[HEARD:] = 100 * direction
        return drawn + 1 if name.endswith("norm.weight") else drawn


def tiny_whisper(directory: Path, *, speakable: bool = False) -> Path:
    """A model of 0.5 MB in OpenVINO IR form, which hears random signs; with `speakable` letters and
    digits."""
    import openvino as ov

    from ovserve.kinds.speech.spec import NETWORKS
    from ovserve.kinds.speech.worker.convert import build, build_tokenizer

    directory.mkdir(parents=True, exist_ok=True)
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that stand for themselves
    others = [chr(256 + i) for i in range(256 - len(printed))]
    ids = {text: i for i, text in enumerate([*map(chr, printed), *others, "th"])}
    special = [
        "<|endoftext|>",
        "<|startoftranscript|>",
        "<|en|>",
        "<|de|>",
        "<|translate|>",
        "<|transcribe|>",
    ]
    special += ["<|startofprev|>", "<|notimestamps|>"]
    added = {text: len(ids) + i for i, text in enumerate(special)}
    size = len(ids) + len(added) + TIMES
    config = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "d_model": WIDTH,
        "num_mel_bins": 80,
        "max_source_positions": 1500,
        "vocab_size": size,
        **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
        **{f"{side}_layers": LAYERS for side in ("encoder", "decoder")},
    }
    tokenizer = {
        "added_tokens": [{"id": id_, "content": text, "special": True} for text, id_ in added.items()],
        "pre_tokenizer": {"type": "ByteLevel"},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": ids, "merges": ["t h"]},
    }
    generation: dict[str, Any] = {
        "alignment_heads": [[1, 0]],
        "bos_token_id": END,
        "eos_token_id": END,
        "pad_token_id": END,
        "decoder_start_token_id": added["<|startoftranscript|>"],
        "no_timestamps_token_id": added["<|notimestamps|>"],
        "prev_sot_token_id": added["<|startofprev|>"],
        "is_multilingual": True,
        "lang_to_id": {text: added[text] for text in ("<|en|>", "<|de|>")},
        "task_to_id": {task: added[f"<|{task}|>"] for task in ("transcribe", "translate")},
        "begin_suppress_tokens": [END],
        "suppress_tokens": [*range(94, 257), *list(added.values())[1:]],  # ASCII and the end are left
        "max_initial_timestamp_index": 50,
    }
    if speakable:
        # Without times, which would be all that is heard on some processors: the first token is a letter then.
        silent = [i for i in range(94) if not chr(33 + i).isalnum()]
        generation["suppress_tokens"] += [*silent, *range(size - TIMES, size)]
    features = {
        "feature_size": 80,
        "sampling_rate": RATE,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": 30,
    }
    features |= {"n_samples": 480_000, "nb_max_frames": 3000}
    files: Mapping[str, Any] = {
        "config.json": config,
        "generation_config.json": generation,
        "preprocessor_config.json": features,
        "tokenizer.json": tokenizer,
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    made = (*build(Random(size), config, int8=True), *build_tokenizer(directory, size))
    for name, model in zip(NETWORKS, made, strict=True):
        ov.save_model(model, directory / name, compress_to_fp16=name.startswith("openvino_encoder"))
    return directory


def graph(models_path: str, *options: str, loopback: bool = True) -> str:
    """OVMS's graph of S2tCalculator."""
    loop = 'stream: "LOOPBACK:again"'
    info = "input_stream_info { tag_index: 'LOOPBACK:0', back_edge: true }"
    handler = """input_stream_handler { input_stream_handler: "SyncSetInputStreamHandler", options {
      [mediapipe.SyncSetInputStreamHandlerOptions.ext] { sync_set { tag_index: "LOOPBACK:0" } } } }"""
    return f"""
input_stream: "HTTP_REQUEST_PAYLOAD:input"
output_stream: "HTTP_RESPONSE_PAYLOAD:output"
node {{
  name: "S2tExecutor"
  calculator: "S2tCalculator"
  input_side_packet: "STT_NODE_RESOURCES:s2t_servable"
  {f"input_{loop} output_{loop} {info} {handler}" if loopback else ""}
  input_stream: "HTTP_REQUEST_PAYLOAD:input"
  output_stream: "HTTP_RESPONSE_PAYLOAD:output"
  node_options: {{
    [type.googleapis.com / mediapipe.S2tCalculatorOptions]: {{
      models_path: "{models_path}", {", ".join(options)} }} }} }}
"""


def samples(file: Path = RECORDING) -> NDArray[np.int16]:
    """16 kHz, one channel."""
    import av

    resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)
    with av.open(file) as source:
        frames = [f for frame in source.decode(audio=0) for f in resampler.resample(frame)]
    return np.concatenate([*(f.to_ndarray().reshape(-1) for f in (*frames, *resampler.resample(None)))])


def wav(values: NDArray[Any], rate: int = RATE, channels: int = 1) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((channels, 2, rate, 0, "NONE", ""))
        out.writeframes(np.asarray(values).astype("<i2").tobytes())
    return file.getvalue()


def whisper() -> Path:
    """Skip where it was not fetched: it is 145 MB."""
    if not (WHISPER / "openvino_decoder_model.bin").is_file():
        pytest.skip("`ovserve pull whisper-base` fetches it: 145 MB, too much for CI")
    return WHISPER


def spoken(text: str, voice: str = "en-us", speed: int = 150) -> NDArray[np.int16]:
    """Text by espeak-ng, which is skipped where it is missing."""
    if shutil.which("espeak-ng") is None:
        pytest.skip("espeak-ng, a package of this name, speaks the text; only tests of whisper-base need it")
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "--stdout", text]
    with wave.open(io.BytesIO(subprocess.run(command, capture_output=True, check=True).stdout)) as source:
        rate, data = source.getframerate(), source.readframes(source.getnframes())
    values = np.frombuffer(data, "<i2").astype(np.float64)
    at = np.arange(int(len(values) * RATE / rate)) * rate / RATE
    return np.interp(at, np.arange(len(values)), values).astype(np.int16)


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower())


def word_errors(expected: str, got: str) -> int:
    """Words to change, insert or remove, by Levenshtein's distance."""
    wanted, found = words(expected), words(got)
    row = list(range(len(found) + 1))
    for i, word in enumerate(wanted, 1):
        last, row[0] = row[0], i
        for j, other in enumerate(found, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (word != other))
    return row[-1]
