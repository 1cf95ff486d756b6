"""`python -m ovserve.kinds.speech.worker.convert SOURCE DIRECTORY [fp16]`: a Whisper model to OpenVINO IR.

SOURCE has config.json, tokenizer.json and weights, as safetensors or in CTranslate2's form. Matrices of
the decoder get 8 bits, or 16 with `fp16`. It is a process of its own, because the command never imports
OpenVINO.

Whisper's tokenizer.json becomes the two OpenVINO graphs that the library loads, without transformers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import openvino as ov
from openvino_tokenizers import tokenizer_pipeline as steps
from openvino_tokenizers.utils import change_inputs_type, change_outputs_type

from ovserve.errors import LoadError
from ovserve.kinds.speech.files import DECODER, DETOKENIZER, ENCODER, TOKENIZER
from ovserve.kinds.speech.worker.whisper_config import CONFIG, model_files
from ovserve.kinds.speech.worker.whisper_graph import build
from ovserve.kinds.speech.worker.whisper_weights import open_weights

DEFAULTS = {
    "unk_token": None,
    "continuing_subword_prefix": "",
    "end_of_word_suffix": "",
    "fuse_unk": False,
    "byte_fallback": False,
}
TIME_TOKEN_SECONDS = 0.02  # seconds between two tokens of time
TOKENIZER_FILE = "tokenizer.json"


def build_tokenizer(directory: Path, size: int) -> tuple[ov.Model, ov.Model]:
    """Return tokenizer and detokenizer. `size` is the model's number of tokens: the last ones are times,
    which some files do not list.

    Raises LoadError for a tokenizer that is not Whisper's.
    """
    file = directory / TOKENIZER_FILE
    try:
        described: dict[str, Any] = json.loads(file.read_text("utf-8"))
        kinds = (described["model"]["type"], described["pre_tokenizer"]["type"], described["decoder"]["type"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadError(f"cannot be read: {error}", file=str(file)) from error
    if kinds != ("BPE", "ByteLevel", "ByteLevel"):
        raise LoadError(f"expected byte-level BPE, got {', '.join(kinds)}", file=str(file))
    described["model"] = DEFAULTS | described["model"]  # older files lack some
    added = described["added_tokens"]
    listed = max(token["id"] for token in added)
    for i, id_ in enumerate(range(listed + 1, size)):
        added.append({"id": id_, "content": f"<|{i * TIME_TOKEN_SECONDS:.2f}|>", "special": True})
    special = {token["id"]: token["content"] for token in added if token["special"]}
    pipeline = steps.TokenizerPipeline()
    pipeline.add_steps(steps.SpecialTokensSplit([steps.SpecialToken(token["content"]) for token in added]))
    pipeline.add_steps([steps.RegexSplitStep.byte_level_splitter(), steps.BytesToCharsStep()])
    pipeline.add_steps(steps.BPETokenizationStep.from_hf_json(described))
    pipeline.vocab = pipeline[-1].vocab
    # Texts are prompts: the library puts the special tokens around them itself.
    pipeline.add_steps(steps.CombineSegmentsStep([steps.Sequence()], add_special_tokens=False))
    ends = next((id_ for id_, text in special.items() if text == "<|endoftext|>"), 0)
    pipeline.add_steps(steps.PaddingStep(token="<|endoftext|>", _token_id=ends))
    pipeline.add_steps(
        steps.VocabDecoderStep.from_hf_json(
            tokenizer_json=described,
            pipeline_vocab=pipeline.vocab,
            skip_tokens=special,
            added_tokens={token["id"]: token["content"] for token in added},
            do_skip_tokens=True,
            is_byte_level=pipeline.is_byte_level,
        )
    )
    pipeline.add_steps([steps.CharsToBytesStep(), steps.UTF8ValidateStep(steps.UTF8ReplaceMode.REPLACE)])
    tokenizer = change_outputs_type(pipeline.get_tokenizer_ov_subgraph(), ov.Type.i64)
    return tokenizer, change_inputs_type(pipeline.get_detokenizer_ov_subgraph(), ov.Type.i64)


def convert(source: Path, directory: Path, *, int8: bool) -> None:
    """Write the four graphs, and the JSON files that SOURCE lacks. Raises LoadError."""
    weights = open_weights(source)
    files = model_files(source, weights)
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=1) + "\n")
    config = files[CONFIG]
    tokenizers = build_tokenizer(source, int(config["vocab_size"]))
    for name, network in zip((TOKENIZER, DETOKENIZER), tokenizers, strict=True):
        ov.save_model(network, directory / name, compress_to_fp16=False)
    for name, network in zip((ENCODER, DECODER), build(weights, config, int8=int8), strict=True):
        ov.save_model(network, directory / name, compress_to_fp16=True)


def main(arguments: list[str]) -> int:
    try:
        convert(Path(arguments[0]), Path(arguments[1]), int8=arguments[2:] != ["fp16"])
    except (LoadError, OSError, KeyError, ValueError) as error:
        print(f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
