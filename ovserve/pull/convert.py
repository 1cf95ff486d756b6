"""Convert a .gguf file to a directory in OpenVINO IR form, for the paged engine and for drafts.

The conversion is a process, `ovserve/kinds/text/worker/gguf/convert.py`. What a directory holds besides
(limits, end tokens, the chat template) is written here from the file's metadata, under Hugging Face's names.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ovserve.children import bound_command
from ovserve.engine.host.kernels import have_kernels
from ovserve.engine.host.memory import Memory, memory
from ovserve.engine.model.files import LANGUAGE_MODELS, PACKED, PACKED_WEIGHTS, read_model_files
from ovserve.engine.model.gguf import GGUFError
from ovserve.engine.model.gguf_forms import converted_size
from ovserve.engine.model.gguf_model import GGUFModel, read_model
from ovserve.errors import LoadError, ResourceExhausted
from ovserve.pull.packaged import NO_SAMPLING
from ovserve.pull.progress import progress, require, size_of
from ovserve.scratch import scratch_directory
from ovserve.serving.model_size import PROCESS_BYTES, RESERVE_BYTES, TOKENIZER_BYTES

MAIN = "openvino_model.xml"  # the last file written: a directory that has it is complete
CLASSES = {
    "llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
    "phi3": "Phi3ForCausalLM", "gemma3": "Gemma3ForCausalLM",
    "granite": "GraniteForCausalLM", "smollm3": "SmolLM3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM", "granitemoe": "GraniteMoeForCausalLM", "gpt-oss": "GptOssForCausalLM",
    "qwen2moe": "Qwen2MoeForCausalLM", "glm4moe": "Glm4MoeForCausalLM", "ernie4_5": "Ernie4_5ForCausalLM",
    "ernie4_5-moe": "Ernie4_5_MoeForCausalLM", "bailingmoe": "BailingMoeForCausalLM",
    "dots1": "Dots1ForCausalLM", "olmoe": "OlmoeForCausalLM", "deepseek2": "DeepseekV2ForCausalLM",
    "phimoe": "PhimoeForCausalLM", "hunyuan-moe": "HunYuanMoEV1ForCausalLM",
}  # fmt: skip
CONVERTER_BYTES = 256 << 20  # of memory; 0.19 GB for 3 B parameters
MEMORY_TO_COMPRESS = 2.0  # memory for compressing, over the network's size; 1.7 for 0.5 B parameters in f16
FP16 = "fp16"  # OVMS's name; the other weight format is "": as quantised in the file
AUTO = "auto"  # the faster of the two on this processor
ROUND, EXACT = "round", "exact"  # steps of kinds/text/worker/gguf/convert.py alone
# Steps of kinds/text/worker/gguf/convert.py and genai/convert.py
MERGE, INT8, INT4 = "merge", "int8", "int4"
DONE = {
    MERGE: "query, key and value of each layer are merged",
    INT8: "weights are compressed to 8 bits, with a scale and a zero point per row",
    INT4: "weights are compressed to 4 bits in groups of at most 128; embedding and output layer to 8",
}
WORKSPACE = ".converting-"
SIDE_FILES = ("*.json", "*/config.json", "LICENSE*")
CONVERT, REWRITE = "ovserve.kinds.text.worker.gguf.convert", "ovserve.kinds.text.worker.genai.convert"
ATTENTION = "ScaledDotProductAttention"
MADE = (MAIN, "openvino_*", "config.json", "generation_config.json", "tokenizer_config.json")


def checked(file: Path) -> GGUFModel:
    """Raises LoadError for a file that cannot be served."""
    try:
        return read_model(file)
    except (GGUFError, OSError) as error:
        raise LoadError(str(error), file=str(file)) from error


def convert(
    file: Path,
    directory: Path,
    say: Callable[[str], None],
    weight_format: str = "",
    sampling: Mapping[str, float] = NO_SAMPLING,
    steps: Sequence[str] = (),
    rounds: bool = False,
    exact: bool = False,
) -> None:
    """Convert. `weight_format`: "" or FP16. `sampling`: defaults for generation_config.json.
    `steps`: keys of DONE. `rounds`: zero points too.
    `exact`: for our kernels, see `gguf_forms`.

    Raises LoadError for what cannot be converted, ResourceExhausted.
    """
    model = checked(file)
    size, made_size = model.gguf.size, _size_here(model, weight_format, exact=exact)
    require(directory, made_size, f"converting {file.name}")
    check_memory(CONVERTER_BYTES, f"converting {file.name}", memory())
    if weight_format:
        check_memory(
            loaded_size(model, weight_format, exact=exact), f"serving {file.name} unpacked", memory()
        )
    directory.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with scratch_directory(WORKSPACE, directory) as work:
        say(
            f"converting {file.name} ({size / 1e9:.2f} GB) to OpenVINO's form, {made_size / 1e9:.2f} GB of "
            f"disk; takes ten seconds per GB or more, and {CONVERTER_BYTES / 1e9:.1f} GB of memory. Once "
            f"loaded, it takes {loaded_size(model, weight_format, exact=exact) / 1e9:.1f} GB of memory and "
            "its KV cache"
        )
        with progress(say, f"converting {file.name}", int(made_size), lambda: size_of(work)):
            arguments = filter(None, [weight_format, ROUND if rounds else "", EXACT if exact else "", *steps])
            run_converter(CONVERT, [str(file), str(work), *arguments], work / MAIN, file)
        _write_side_files(model, work, sampling)
        for old in (MAIN, PACKED, PACKED_WEIGHTS):
            (directory / old).unlink(missing_ok=True)
        for path in sorted(work.iterdir(), key=lambda p: p.name == MAIN):
            shutil.move(path, directory / path.name)
    size_written = (directory / "openvino_model.bin").stat().st_size
    say(
        f"{directory / MAIN}: {size_written / 1e6:.0f} MB out of {size / 1e6:.0f} MB, in "
        f"{time.monotonic() - began:.0f} s"
    )


def loaded_size(model: GGUFModel, weight_format: str, *, exact: bool) -> int:
    """Return the memory that an engine with the converted model takes, without its KV cache."""
    tensors = model.gguf.tensors.values()
    copy = converted_size(tensors, unpacked=True) if weight_format else 0
    return converted_size(tensors, in_memory=not have_kernels(), exact=exact) + copy + PROCESS_BYTES


def check_memory(size: float, what: str, memory: Memory) -> None:
    """Raise ResourceExhausted when `size` bytes would fill the memory."""
    if memory.available and size + RESERVE_BYTES > memory.available:
        raise ResourceExhausted(
            f"{what} needs {size / 1e9:.2f} GB of memory, and the {memory.limit} has "
            f"{memory.available / 1e9:.2f} GB left, of which {RESERVE_BYTES / 1e9:.2f} GB stay free"
        )


def _size_here(model: GGUFModel, weight_format: str, *, exact: bool) -> float:
    tensors = model.gguf.tensors.values()
    size = converted_size(tensors, exact=exact) + TOKENIZER_BYTES
    if weight_format:
        size += converted_size(tensors, unpacked=True)
    return size


def remove(directory: Path) -> None:
    """Remove what `convert` has written, the network first: without it the directory is not an IR model."""
    for pattern in MADE:
        for file in directory.glob(pattern):
            file.unlink()


def rewrite_in_place(directory: Path, steps: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """Apply steps, keys of DONE, to a model in IR form. Return those that changed something.

    Raises LoadError if it was ended between writing and replacing: the directory then has no model.
    """
    networks = [directory / name for name in LANGUAGE_MODELS]
    compresses = INT8 in steps or INT4 in steps
    for network in networks:
        if not network.is_file() or ATTENTION not in network.read_text("utf-8", "replace"):
            continue
        try:
            size = network.with_suffix(".bin").stat().st_size
            require(directory, size, "rewriting the weights")
            if compresses:
                check_memory(size * MEMORY_TO_COMPRESS, f"compressing {network}", memory())
            changed = run_converter(REWRITE, [str(network), *steps], network, network)
        except (LoadError, ResourceExhausted, OSError) as error:
            for half in directory.glob("replaced.*"):  # written by a process that was ended
                half.unlink()
            if not network.is_file() or compresses:
                raise
            say(f"{network} stays as it is, which is slower: {error}")
            return []
        for step in changed:
            say(f"{network}: {DONE[step]}")
        for bits, step in ((8, INT8), (4, INT4)):
            if step in steps and step not in changed:
                say(f"{network}: no weight is a float, so none is compressed to {bits} bits")
        return changed
    return []


def run_converter(module: str, arguments: Sequence[str], output: Path, file: Path) -> list[str]:
    """Run a process that makes a file, and return the steps that changed something. An error names `file`."""
    command = bound_command([sys.executable, "-m", module, *arguments])
    process = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if process.returncode or not output.is_file():
        lines = [line for line in (process.stderr + process.stdout).splitlines() if line.strip()]
        reason = lines[-1] if lines else "no reason given"
        ended = f"it was killed by signal {-process.returncode}; " if process.returncode < 0 else ""
        raise LoadError(f"cannot be converted: {ended}{reason}", file=str(file))
    return process.stdout.rpartition("changed:")[2].split()


@dataclass(frozen=True)
class Converter:
    """A process that makes OpenVINO IR of weights, for models that are not .gguf files."""

    module: str
    output: str  # the network that is written last: a directory that has it is complete
    weights: tuple[str, ...]  # one of these is read
    served: tuple[str, ...]  # a directory with one of these is served as it is
    missing: Callable[[Path], list[str]]  # what a directory in OpenVINO IR form lacks
    what: str  # is converted, for the user

    def run(self, source: Path, directory: Path, say: Callable[[str], None]) -> None:
        """Convert a file, or a directory whose side files come along. Raises LoadError."""
        directory.mkdir(parents=True, exist_ok=True)
        for file in sorted(file for pattern in SIDE_FILES for file in source.glob(pattern)):
            target = directory / file.relative_to(source)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, target)
        say(f"converting {self.what}")
        with scratch_directory(".convert-", directory) as converted:
            run_converter(self.module, [str(source), str(converted)], converted / self.output, source)
            for path in sorted(converted.iterdir(), key=lambda file: file.name == self.output):
                shutil.move(path, directory / path.name)
        say(f"{directory / self.output} is written")


def _write_side_files(model: GGUFModel, directory: Path, sampling: Mapping[str, float]) -> None:
    facts, p = read_model_files(str(model.gguf.path)), model.parameters
    config = {
        "architectures": [
            "MixtralForCausalLM" if model.name == "llama" and p.mixture else CLASSES[model.name]
        ],
        "model_type": model.name,
        "max_position_embeddings": p.length,
        "vocab_size": facts.vocab_size,
        "hidden_size": p.width,
        "num_hidden_layers": p.layers,
        "intermediate_size": p.inner,
        "num_attention_heads": p.heads,
        "num_key_value_heads": p.kv_heads,
        "head_dim": p.head_size,
        "bos_token_id": model.tokens.bos,
        "eos_token_id": model.tokens.eos,
    }
    ends = list(dict.fromkeys(facts.end_token_ids))
    tokenizer = {
        "add_bos_token": facts.add_bos_token,
        "chat_template": [
            {"name": key, "template": text}
            for key, text in (("default", facts.chat_template), ("tool_use", facts.tool_template))
            if text
        ],
    }
    for file_name, values in (
        ("config.json", config),
        ("generation_config.json", {"eos_token_id": ends, **sampling}),
        ("tokenizer_config.json", tokenizer),
    ):
        present = {key: value for key, value in values.items() if value is not None and value != []}
        text = msgspec.json.format(msgspec.json.encode(present), indent=1)
        (directory / file_name).write_bytes(text + b"\n")
