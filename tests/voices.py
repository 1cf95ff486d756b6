"""A tiny voice model in Kokoro's form: the real library with its dictionaries, and a tone for each phoneme."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

RATE = 24_000
PER_TOKEN = 1200  # samples: 0.05 s
LETTERS = "abdefhijklmnoprstuvwzæðŋɐɑɒɔəɚɛɜɡɪɹɾʃʊʌʒθʤʧˈˌAIOWYᵊᵻ .,!?;:"
WORDS = ("hello", "world", "ship", "harbour", "one", "two", "three", "ready", "the", "left", "nine")
SIZE = (510, 1, 256)


def tiny_voice(directory: Path, *, work: int = 0, voices: tuple[str, ...] = ("af_one", "bm_two")) -> Path:
    """Write the model. `work`: matrices that are multiplied per sentence, each about 10 ms of a processor."""
    import openvino as ov
    from openvino import opset13 as ops

    ids = ops.parameter([1, -1], np.int64, name="input_ids")
    style = ops.parameter([1, 256], np.float32, name="ref_s")
    speed = ops.parameter([1], np.float32, name="speed")
    tokens = ops.convert(ops.gather(ops.shape_of(ids), np.int64(1), np.int64(0)), "f32")
    samples = ops.divide(ops.multiply(tokens, np.float32(PER_TOKEN)), ops.squeeze(speed, np.int64(0)))
    time = ops.range(np.float32(0), ops.floor(samples), np.float32(1), "f32")
    tone = ops.multiply(ops.sin(ops.multiply(time, np.float32(2 * np.pi * 220 / RATE))), np.float32(0.3))
    if work:
        matrix = ops.constant(np.random.default_rng(1).normal(0, 0.03, (1024, 1024)).astype(np.float32))
        state = ops.concat([ops.broadcast(style, np.array([1024, 256]))] * 4, 1)
        for _ in range(work):
            state = ops.tanh(ops.matmul(state, matrix, False, False))
        tone = ops.add(tone, ops.multiply(ops.reduce_mean(state, np.array([0, 1])), np.float32(1e-9)))
    waveform = ops.unsqueeze(tone, np.int64(0))
    waveform.output(0).get_tensor().set_names({"waveform"})
    for port, name in ((ids, "input_ids"), (style, "ref_s"), (speed, "speed")):
        port.output(0).get_tensor().set_names({name})
    (directory / "data").mkdir(parents=True, exist_ok=True)
    (directory / "voices").mkdir(exist_ok=True)
    ov.save_model(ov.Model([waveform], [ids, style, speed], "voice"), directory / "openvino_model.xml")
    vocabulary = {letter: number for number, letter in enumerate(LETTERS, 1)}
    (directory / "config.json").write_text(
        json.dumps({"model_type": "kokoro", "n_mels": 80, "vocab": vocabulary})
    )
    for name in ("us_gold", "us_silver", "gb_gold", "gb_silver"):
        (directory / "data" / f"{name}.json").write_text(json.dumps(dict.fromkeys(WORDS, "bˈOd")))
    for number, voice in enumerate(voices):
        np.full(SIZE, number, "<f4").tofile(directory / "voices" / f"{voice}.bin")
    return directory


def voice_graph(models_path: str, *options: str) -> str:
    """OVMS's graph file for this node, with more options."""
    fields = "\n".join([f'models_path: "{models_path}"', 'target_device: "CPU"', *options])
    return f"""
input_stream: "HTTP_REQUEST_PAYLOAD:input"
output_stream: "HTTP_RESPONSE_PAYLOAD:output"
node {{
  name: "T2sExecutor"
  calculator: "T2sCalculator"
  input_side_packet: "TTS_NODE_RESOURCES:t2s_servable"
  input_stream: "HTTP_REQUEST_PAYLOAD:input"
  output_stream: "HTTP_RESPONSE_PAYLOAD:output"
  node_options: {{
    [type.googleapis.com / mediapipe.T2sCalculatorOptions]: {{ {fields} }}
  }}
}}
"""
