"""Speed and memory with models of 3 and 8 billion parameters. `make bench-real`, half an hour.

    python -m benchmarks.real_sizes [--shape llama-3.2-3b] [--layers N] [--rounds 2] [--streams 1,4,8]
                                    [--prompt 512] [--tokens 64] [--sides gguf,int4,library,llama.cpp]
                                    [--type q4_k_m]

The models are made here, in .real/: real shapes with random weights, as a .gguf file and as a directory in int4 with
groups of 128. This server serves both, the library (OpenVINO GenAI's engine behind this server) the
directory, and llama.cpp's server the file. With `--sides ...,vllm` vLLM serves random bf16 weights of the shape. Everything
stays loaded and takes turns, as in `peers.py`. Before that, log-probabilities of one prompt are compared between those that serve the file: they must compute the same.
3B takes 10 GB of memory, `--layers 8` four. Prints a table in Markdown, with the bandwidth of the memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import gguf
import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type
from openvino import opset13 as ops

from benchmarks import peers, processes
from benchmarks.assisted import MODEL, ROOT
from benchmarks.contenders import Contender, Recipe, peer
from benchmarks.peer_setup import ISA, VLLM
from ovserve.engine.model.gguf import read_gguf
from ovserve.engine.model.gguf_forms import Form
from ovserve.engine.model.gguf_model import read_model
from ovserve.kinds.text.worker.gguf.convert import write_network
from ovserve.kinds.text.worker.gguf.network import MERGE, Network
from ovserve.kinds.text.worker.gguf.weights import Constant, Matrix, Part, WeightsFile
from ovserve.pull.convert import convert

PLACE = ROOT / ".real"
FIRST_ID, LAST_ID = 1000, 40_000  # ordinary words of the default model's vocabulary
BY_ROW = Form("i8")  # with a scale per row
INT4 = Form("u4", 128, rounded=True)  # what optimum-cli writes with --weight-format int4
NORM, BANDWIDTH_BYTES, BANDWIDTH_ROUNDS = 1e-5, 1 << 30, 4
SERVED = {
    "gguf": "ovserve, .gguf",
    "int4": "ovserve, int4",
    "library": "library, int4",
    "llama.cpp": "llama.cpp, .gguf",
    "vllm": "vLLM, bf16",
}
RANDOM = np.random.default_rng(7)


class Shape(NamedTuple):
    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    tied: bool
    experts: int = 0  # of a layer, of the width `inner`
    experts_used: int = 0


SHAPES = {
    "llama-3.2-1b": Shape(16, 2048, 8192, 32, 8, 64, 128_256, True),
    "llama-3.2-3b": Shape(28, 3072, 8192, 24, 8, 128, 128_256, True),
    "llama-3.1-8b": Shape(32, 4096, 14_336, 32, 8, 128, 128_256, False),
    "qwen3-30b-a3b": Shape(48, 2048, 768, 32, 4, 128, 151_936, False, experts=128, experts_used=8),
}


FILE_TYPES = {Type.Q4_K: 15, Type.Q5_K: 17}  # the medium ones


# ---- models


def blocks(kind: Type, rows: int, columns: int, deviation: float) -> np.ndarray:
    """Return random blocks of a type, with values around 0."""
    items, size = GGML_QUANT_SIZES[kind]
    made = np.frombuffer(RANDOM.bytes(rows * columns // items * size), np.uint8).reshape(-1, size).copy()
    places = {
        Type.Q4_K: {0: deviation / 147, 2: 7.5 * deviation / 147},
        Type.Q5_K: {0: deviation / 295, 2: 15.5 * deviation / 295},
        Type.Q6_K: {208: deviation / 1184},
    }[kind]
    for at, value in places.items():
        made[:, at : at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
    if kind != Type.Q6_K:  # scales and offsets of 32, except of single groups
        made[:, 4:12] = 0xA0 | made[:, 4:12] & 1
        made[:, 12:16] = 0
    else:
        made[:, 192:208] = 64
    return made.reshape(rows, -1)


def matrices(shape: Shape, layers: int, low: Type) -> dict[str, tuple[Type, int, int]]:
    """Return type, rows and columns of each matrix, as llama.cpp chooses them for Q4_K_M and Q5_K_M. Those of
    experts are stacked."""
    s, high = shape, Type.Q6_K
    made = {"token_embd": (high if s.tied else low, s.vocabulary, s.width)}
    if not s.tied:
        made["output"] = (high, s.vocabulary, s.width)
    stacked, suffix = max(1, s.experts), "_exps" if s.experts else ""
    for i in range(layers):
        better = i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2
        finer = high if better else low
        made |= {
            f"blk.{i}.attn_q": (low, s.heads * s.head, s.width),
            f"blk.{i}.attn_k": (low, s.kv_heads * s.head, s.width),
            f"blk.{i}.attn_v": (finer, s.kv_heads * s.head, s.width),
            f"blk.{i}.attn_output": (low, s.width, s.heads * s.head),
            f"blk.{i}.ffn_gate{suffix}": (low, stacked * s.inner, s.width),
            f"blk.{i}.ffn_up{suffix}": (low, stacked * s.inner, s.width),
            f"blk.{i}.ffn_down{suffix}": (finer, stacked * s.width, s.inner),
        }
    return made


def write_gguf(file: Path, shape: Shape, layers: int, low: Type) -> None:
    architecture = "qwen3moe" if shape.experts else "llama"
    writer = gguf.GGUFWriter(file, architecture)
    keys = {
        "context_length": 131_072, "embedding_length": shape.width, "block_count": layers,
        "feed_forward_length": shape.inner, "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads, "attention.key_length": shape.head,
        "attention.value_length": shape.head, "rope.dimension_count": shape.head, "vocab_size": shape.vocabulary,
    }  # fmt: skip
    if shape.experts:
        keys |= {"expert_count": shape.experts, "expert_used_count": shape.experts_used}
        keys["expert_feed_forward_length"] = shape.inner
    for key, value in keys.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_layer_norm_rms_eps(NORM)
    writer.add_rope_freq_base(500_000.0)
    writer.add_file_type(FILE_TYPES[low])
    _add_tokens(writer, shape.vocabulary)
    planned = matrices(shape, layers, low)
    plain = {"output_norm": np.ones(shape.width, np.float32)}
    for i in range(layers):
        plain |= {f"blk.{i}.{part}_norm": plain["output_norm"] for part in ("attn", "ffn")}
        if shape.experts:
            plain |= {f"blk.{i}.attn_{part}_norm": np.ones(shape.head, np.float32) for part in "qk"}
            router = RANDOM.standard_normal((shape.experts, shape.width)) / math.sqrt(shape.width)
            plain[f"blk.{i}.ffn_gate_inp"] = router.astype(np.float32)
    for name, (kind, rows, columns) in planned.items():
        items, size = GGML_QUANT_SIZES[kind]
        row = columns // items * size
        stacked = (shape.experts, rows // shape.experts) if name.endswith("_exps") else (rows,)
        writer.add_tensor_info(
            f"{name}.weight", (*stacked, row), np.dtype(np.uint8), rows * row, raw_dtype=kind
        )
    for name, numbers in plain.items():
        writer.add_tensor_info(f"{name}.weight", numbers.shape, numbers.dtype, numbers.nbytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, (kind, rows, columns) in planned.items():
        writer.write_tensor_data(blocks(kind, rows, columns, deviation(name, columns, layers)))
    for numbers in plain.values():
        writer.write_tensor_data(numbers)
    writer.close()


def deviation(name: str, columns: int, layers: int) -> float:
    """Return the standard deviation of a matrix with which activations stay of one size."""
    if name.startswith("token_embd"):
        return 0.05
    deep = name.endswith(("attn_output", "ffn_down", "ffn_down_exps"))
    return (1 / math.sqrt(2 * layers) if deep else 1.0) / math.sqrt(columns)


def _add_tokens(writer: gguf.GGUFWriter, count: int) -> None:
    """Add the default model's vocabulary, and words that no text has, so that each token has a text."""
    known = read_gguf(MODEL)
    tokens, kinds = (list(known.array(f"tokenizer.ggml.{key}")) for key in ("tokens", "token_type"))
    missing = range(len(tokens), count)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*map(str, tokens), *(f"Ġqx{i}" for i in missing)])
    writer.add_token_types([*map(int, kinds), *(1 for _ in missing)])
    writer.add_token_merges([str(merge) for merge in known.array("tokenizer.ggml.merges")])
    writer.add_eos_token_id(int(str(known.metadata["tokenizer.ggml.eos_token_id"])))
    writer.add_bos_token_id(int(str(known.metadata["tokenizer.ggml.bos_token_id"])))
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")


class RandomNetwork(Network):
    """The network of a file with random matrices in INT4, embedding and output layer in int8."""

    def _matrix(self, parts: Sequence[Part], *, table: bool = False) -> Matrix:
        rows, tensor = sum(math.prod(part.tensor.dims[1:]) for part in parts), parts[0].tensor
        return self._random(tensor.name, BY_ROW if table else INT4, rows, tensor.dims[0])

    def _output(self, embedding: Matrix) -> Matrix:
        if self._model.tied:
            return embedding
        return self._matrix([Part(self._tensor("output.weight"))], table=True)

    def _unpacked(self, matrix: Matrix, experts: int = 0) -> Any:
        if matrix.form is BY_ROW:
            return ops.multiply(
                ops.convert(self._constant(matrix.values), "f32"), self._constant(matrix.scales)
            )
        return super()._unpacked(matrix, experts)

    def _random(self, name: str, form: Form, rows: int, columns: int) -> Matrix:
        sizes, made = form.bytes_for(rows, columns), {}
        step = deviation(name.removesuffix(".weight"), columns, self._p.layers) / (
            73 if form is BY_ROW else 4.6
        )
        grouped = (rows, columns // form.group) if form.group else (rows,)
        for part, size in sizes.items():
            kind, shape, data = form.values, (*grouped, form.group or columns), RANDOM.bytes(size)
            if part == "scales":
                kind, shape = form.scales, (*grouped, 1)
                data = np.full(shape, step, np.float32 if kind == "f32" else np.float16).tobytes()
            elif part == "zeros":
                shape, data = (*grouped, 1), np.full(size, 0x78, np.uint8).tobytes()
            made[part] = Constant(kind, shape, self._weights.append(data), size)
        return Matrix(form, rows, columns, **made)


def shape_of(chosen: argparse.Namespace) -> tuple[Shape, int]:
    """Return the shape and its layers."""
    layers = chosen.layers or SHAPES[chosen.shape].layers
    return SHAPES[chosen.shape]._replace(layers=layers), layers


def prepare(name: str, shape: Shape, low: Type) -> tuple[Path, Path]:
    """Return the file and the directory; make what is missing."""
    folder = PLACE / f"{name}-{shape.layers}{'-q5' if low is Type.Q5_K else ''}"
    file, directory = folder / f"model-{low.name.lower()}_m.gguf", folder / "int4"
    if not (directory / "openvino_model.xml").exists():
        shutil.rmtree(folder, ignore_errors=True)
        directory.mkdir(parents=True)
        _log(f"making {name} with {shape.layers} layers in {folder}")
        write_gguf(file, shape, shape.layers, low)
        convert(file, folder / "gguf", _log, steps=[MERGE])
        for side in (folder / "gguf").iterdir():
            if side.stem.startswith(("openvino_tok", "openvino_detok")) or side.suffix == ".json":
                shutil.copy(side, directory)
        with (directory / "openvino_model.bin").open("wb") as opened:
            weights = WeightsFile(opened)
            network = RandomNetwork(read_model(file), weights, [MERGE])
            write_network(network.build(), network.constants, weights, directory / "openvino_model.xml")
    return file, directory


def described_for_vllm(file: Path) -> Path:
    """Return a directory with the file's configuration and tokenizer, made by vLLM's environment."""
    directory = file.parent / "vllm"
    if not (directory / "tokenizer_config.json").exists():
        script = Path(__file__).with_name("peer_weights.py")
        command = [str(VLLM / "bin/python"), "-P", str(script), str(file), str(directory), "--no-weights"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return directory


# ---- measurements


def bandwidth(threads: int) -> float:
    """Return GB/s of reading memory. numpy's maximum of bytes reads 64 at once and lets other threads run."""
    parts = [np.ones(BANDWIDTH_BYTES // threads, np.uint8) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        seconds = []
        for _ in range(BANDWIDTH_ROUNDS):
            began = time.perf_counter()
            list(pool.map(np.max, parts))
            seconds.append(time.perf_counter() - began)
    return BANDWIDTH_BYTES / min(seconds) * 1e-9


def ask(contender: Contender, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{contender.port}{contender.completions}",
        json.dumps({"model": "smollm2", "temperature": 0, **body}).encode(),
        {"Content-Type": "application/json"},
    )
    with contender.turn(), urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def difference(first: Contender, second: Contender, prompt: list[int]) -> float:
    """Return the largest difference of log-probabilities of the tokens that both have among their likeliest."""
    found = []
    for contender in (first, second):
        answer = ask(contender, {"prompt": prompt, "max_tokens": 1, "logprobs": 5})["choices"][0]["logprobs"]
        if "content" in answer:  # llama.cpp's form
            found.append({top["token"]: top["logprob"] for top in answer["content"][0]["top_logprobs"]})
        else:
            found.append(answer["top_logprobs"][0])
    both = found[0].keys() & found[1].keys()
    if not both:
        raise RuntimeError(f"{first.name} and {second.name} compute different models: {found}")
    return max(abs(found[0][token] - found[1][token]) for token in both)


def recipes(chosen: argparse.Namespace, file: Path, directory: Path) -> dict[str, Recipe]:
    made = {}
    for side in chosen.sides.split(","):
        if side in ("llama.cpp", "vllm"):
            weights = described_for_vllm(file) if side == "vllm" else file
            made[side] = peer(side, max(chosen.streams), chosen.prompt + chosen.tokens + 64, file, weights)
            continue
        served, engine = {
            "gguf": (file, "paged"),
            "int4": (directory, "paged"),
            "library": (directory, "genai"),
        }[side]
        store = file.parent / f"{side}.db"
        command = [sys.executable, *("-m", "ovserve", "serve", str(served), "--rest_port", "{port}")]
        command += ["--model_name", "smollm2", "--engine", engine, "--response_store_path", str(store)]
        command += [
            "--model_repository_path",
            str(file.parent / "served"),
            "--enable_prefix_caching",
            "false",
        ]
        if ISA:  # which the plugin does not read, so that it would compute in bf16
            command += ["--plugin_config", '{"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "u8"}']
        made[side] = Recipe(SERVED[side], tuple(command), "/v2/health/ready", "/v3/completions")
    return made


class Row(NamedTuple):
    side: str
    streams: int
    turns: list[peers.Turn]


def measure(contenders: dict[str, Contender], chosen: argparse.Namespace) -> list[Row]:
    turns: list[peers.Turn] = []

    def prompts(count: int, tokens: int) -> list[list[int]]:
        return RANDOM.integers(FIRST_ID, LAST_ID, (count, tokens)).tolist()

    for contender in contenders.values():
        ask(contender, {"prompt": prompts(1, 32)[0], "max_tokens": 4})
    for number in range(chosen.rounds):
        order = list(contenders.values())
        order = order[number % len(order) :] + order[: number % len(order)]
        for streams in chosen.streams:
            texts = prompts(streams, chosen.prompt)
            for contender in order:
                turns.append(peers.turn(contender, texts, streams, chosen))
                last = turns[-1]
                _log(
                    f"round {number + 1}, {streams} streams, {contender.name}: first token {last.first_token:.2f} s, "
                    f"gap {last.gap_p50 * 1e3:.0f} ms, others {last.others_cores:.2f} cores, load {os.getloadavg()[0]:.1f}"
                )
    return [
        Row(side, streams, [t for t in turns if t.server == contender.name and t.streams == streams])
        for streams in chosen.streams
        for side, contender in contenders.items()
    ]


def table(
    rows: list[Row],
    sizes: dict[str, float],
    resident: dict[str, tuple[float, float]],
    chosen: argparse.Namespace,
) -> list[str]:
    text = [
        "| streams | | file, GB | loaded, GB | resident at the end | first token, s | prompts, tokens/s | gap, ms | tokens/s | weights, GB/s |",
        "|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for side, streams, turns in rows:
        first, gap = median(t.first_token for t in turns), median(t.gap_p50 for t in turns)
        alone, reads_all = streams == 1, not SHAPES[chosen.shape].experts
        text.append(
            f"| {streams} | {SERVED[side]} | {sizes[side]:.2f} "
            f"| {resident[side][0]:.2f} | {resident[side][1]:.2f} | {first:.2f} "
            f"| {f'{chosen.prompt / first:.0f}' if alone else ''} | {gap * 1e3:.0f} "
            f"| {median(t.tokens_per_second for t in turns):.2f} "
            f"| {f'{sizes[side] / gap:.1f}' if alone and reads_all else ''} |"
        )
    return text


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_sizes")
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.2-3b")
    parser.add_argument("--type", choices=["q4_k_m", "q5_k_m"], default="q4_k_m", help="of the file")
    parser.add_argument("--layers", type=int, default=0, help="fewer than the shape has")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--streams", type=lambda text: [int(n) for n in text.split(",")], default=[1, 4, 8])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--sides", default="gguf,int4,library,llama.cpp", help=f"of {', '.join(SERVED)}")
    parser.set_defaults(no_drafts=True)
    return parser.parse_args()


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    chosen = options()
    processes.exit_on_sigterm()
    low = Type[chosen.type.upper().removesuffix("_M")]
    file, directory = prepare(chosen.shape, shape_of(chosen)[0], low)
    before = {threads: bandwidth(threads) for threads in (1, os.cpu_count() or 1)}
    with contextlib.ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        loaded: dict[str, float] = {}
        for side, recipe in recipes(chosen, file, directory).items():
            contenders[side] = Contender(recipe)
            stack.callback(contenders[side].stop)
            loaded[side] = contenders[side].resident()
            _log(f"{recipe.name} is ready after {contenders[side].start_seconds:.1f} s")
        same = ""
        if {"gguf", "llama.cpp"} <= contenders.keys():
            prompt = RANDOM.integers(FIRST_ID, LAST_ID, 128).tolist()
            apart = difference(contenders["gguf"], contenders["llama.cpp"], prompt)
            _log(f"log-probabilities differ by at most {apart:.3f}")
            same = f"Log-probabilities of ovserve and llama.cpp differ by at most {apart:.3f}. "
        rows = measure(contenders, chosen)
        resident = {side: (loaded[side], contender.resident()) for side, contender in contenders.items()}
    after = {threads: bandwidth(threads) for threads in before}
    of_directory = sum(part.stat().st_size for part in directory.glob("openvino_model.bin"))
    of_file = file.stat().st_size
    bf16 = sum(2 * rows * columns for _, rows, columns in matrices(*shape_of(chosen), low).values())
    bytes_of = {"int4": of_directory, "library": of_directory, "vllm": bf16}
    sizes = {side: bytes_of.get(side, of_file) / 1e9 for side in contenders}
    speeds = ", ".join(f"{max(before[n], after[n]):.1f} GB/s with {n} cores" for n in before)
    others = [turn.others_cores for row in rows for turn in row.turns]
    print("\n".join(table(rows, sizes, resident, chosen)))
    print(f"\nMemory is read at {speeds}. {same}Other processes kept {median(others):.2f} cores busy.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
