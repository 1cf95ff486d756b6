"""Convert a .gguf file to a directory in OpenVINO IR form: `ovserve pull --convert`, and drafts.

The library's reader writes the network and the tokenizers. What it leaves out (limits, end tokens, the chat
template) is written here from the file's own metadata, under Hugging Face's names.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path

import msgspec

from ovserve.engine.model.files import LANGUAGE_MODELS, PACKED, PACKED_WEIGHTS, read_model_files
from ovserve.engine.model.gguf import GGUFError, Value, read_metadata, read_tensors
from ovserve.errors import LoadError, ResourceExhausted
from ovserve.pull import reencode
from ovserve.pull.disk import require
from ovserve.pull.packaged import NO_SAMPLING
from ovserve.pull.progress import progress

MAIN = "openvino_model.xml"  # the last file written: a directory that has it is complete
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
GROWTH = 1.5  # size of IR over GGUF, at most; types with many scales need more
REENCODED = 2.0
FP16 = "fp16"  # OVMS's name; the other weight format is "": as quantised in the file
AUTO = "auto"  # the faster of the two on this processor
MERGE, INT8_OUTPUT = "merge", "int8_output"  # steps of engine/backends/genai/convert.py
DONE = {
    MERGE: "query, key and value of each layer are merged",
    INT8_OUTPUT: "the output layer is in int8 per row",
}
ATTENTION = "ScaledDotProductAttention"
MADE = (MAIN, "openvino_*", "config.json", "generation_config.json", "tokenizer_config.json")


def convert(
    file: Path,
    directory: Path,
    say: Callable[[str], None],
    weight_format: str = "",
    sampling: Mapping[str, float] = NO_SAMPLING,
    steps: Sequence[str] = (),
) -> list[str]:
    """Convert. `weight_format`: "" or FP16. `sampling`: defaults for generation_config.json.
    `steps`: keys of DONE; those that changed something are returned.

    Raises LoadError with the reader's reason, ResourceExhausted.
    """
    try:
        refused = reencode.refused(file)
        unpacked = sum(2 * prod(t.dims) for t in read_tensors(str(file))) if weight_format else 0
    except GGUFError as error:
        raise LoadError(str(error), file=str(file)) from error
    size = file.stat().st_size
    room = size * (GROWTH + (REENCODED if refused else 0)) + unpacked
    require(directory, room, f"converting {file.name}")
    directory.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=".convert-", dir=directory) as scratch:
        work = Path(scratch) / "model.gguf"
        if refused:
            say(f"writing {len(refused)} tensors ({reencode.kinds(refused)}) as Q8_0, which OpenVINO reads")
            with progress(say, f"writing {file.name} as Q8_0", 0):
                reencode.reencode(file, work, {t.name for t in refused})
        else:
            work.symlink_to(file.absolute())
        say(f"converting {file.name} to OpenVINO's form; takes a minute per GB")
        with progress(say, f"converting {file.name}", 0):
            changed = _run(work, Path(scratch) / MAIN, file, [weight_format, *steps])
        _write_side_files(file, Path(scratch), sampling)
        for old in (MAIN, PACKED, PACKED_WEIGHTS):
            (directory / old).unlink(missing_ok=True)
        for made in sorted(Path(scratch).iterdir(), key=lambda p: p.name == MAIN):
            if made != work:
                shutil.move(made, directory / made.name)
    made_size = (directory / "openvino_model.bin").stat().st_size
    say(
        f"{directory / MAIN}: {made_size / 1e6:.0f} MB out of {size / 1e6:.0f} MB, in "
        f"{time.monotonic() - began:.0f} s"
    )
    _say_what_stays(directory / MAIN, steps, changed, say)
    return changed


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
    for network in networks:
        if not network.is_file() or ATTENTION not in network.read_text("utf-8", "replace"):
            continue
        try:
            size = network.with_suffix(".bin").stat().st_size
            require(directory, size * (GROWTH if INT8_OUTPUT in steps else 1), "rewriting the weights")
            changed = _run(network, network, network, steps)
        except (LoadError, ResourceExhausted, OSError) as error:
            for half in directory.glob("replaced.*"):  # written by a process that was ended
                half.unlink()
            if not network.is_file():
                raise
            say(f"{network} stays as it is, which is slower: {error}")
            return []
        for step in changed:
            say(f"{network}: {DONE[step]}")
        _say_what_stays(network, steps, changed, say)
        return changed
    return []


def _say_what_stays(
    network: Path, steps: Sequence[str], changed: Sequence[str], say: Callable[[str], None]
) -> None:
    if INT8_OUTPUT in steps and INT8_OUTPUT not in changed:
        say(f"{network}: the output layer stays as it is, which is not finer than int8 per row")


def _run(source: Path, made: Path, file: Path, steps: Sequence[str]) -> list[str]:
    """Run the process, and return the steps that changed something. An error names `file`."""
    command = [
        sys.executable,
        "-m",
        "ovserve.engine.backends.genai.convert",
        str(source),
        *filter(None, steps),
    ]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode or not made.is_file():
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        reason = lines[-1] if lines else "no reason given"
        ended = f"it was killed by signal {-done.returncode}; " if done.returncode < 0 else ""
        raise LoadError(f"OpenVINO's reader cannot convert it: {ended}{reason}", file=str(file))
    return done.stdout.rpartition("changed:")[2].split()


def _write_side_files(file: Path, directory: Path, sampling: Mapping[str, float]) -> None:
    found, facts = read_metadata(str(file)), read_model_files(str(file))
    name = facts.architecture

    def of(key: str) -> Value | None:
        return found.get(f"{name}.{key}")

    heads = of("attention.head_count")
    config = {
        "architectures": [CLASSES.get(name, name)],
        "model_type": name,
        "max_position_embeddings": facts.max_length,
        "vocab_size": facts.vocab_size,
        "hidden_size": of("embedding_length"),
        "num_hidden_layers": of("block_count"),
        "intermediate_size": of("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": found.get(f"{name}.attention.head_count_kv", heads),
        "head_dim": of("attention.key_length"),
        "bos_token_id": found.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": found.get("tokenizer.ggml.eos_token_id"),
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
        known = {key: value for key, value in values.items() if value is not None and value != []}
        text = msgspec.json.format(msgspec.json.encode(known), indent=1)
        (directory / file_name).write_bytes(text + b"\n")
