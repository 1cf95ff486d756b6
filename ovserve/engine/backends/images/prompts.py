"""Find the prompts of a call that are too long for a text encoder of the pipeline: the library cuts them.

Each text encoder has a tokenizer of its own and reads one of the prompts. CLIP's and T5's are known here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import openvino_genai as ov_genai

from ovserve.engine.model.image_files import pipeline_class, text_encoders
from ovserve.engine.protocol.images import GenerateArguments

CLIP, T5 = "CLIP", "T5"  # how the names of classes begin
CLIP_TOKENS = 77  # the library's default of max_position_embeddings
SPECIAL = 2  # tokens around a text, at most
LENGTH = "max_sequence_length"


class _Encoder(NamedTuple):
    tokenizer: Any
    suffix: str  # of the fields with its prompts
    tokens: int  # that it reads; 0: as the request says
    whole: bool  # whether its tokenizer counts further than that

    def cuts(self, text: str, tokens: int) -> bool:
        if text.isascii() and len(text) + SPECIAL <= tokens:  # a token has at least one character
            return False
        return _count(self.tokenizer, text) + (not self.whole) > tokens


class Prompts:
    def __init__(self, directory: Path, sequence_length: int) -> None:
        """`sequence_length` is that of requests without `max_sequence_length`."""
        self._sequence_length = sequence_length
        self._encoders = list(_encoders(directory))

    def cut(self, asked: GenerateArguments) -> tuple[str, ...]:
        """Return the fields whose texts are cut, in the order of the alphabet."""
        options = asked.options
        length = int(options.get(LENGTH, self._sequence_length))
        found = set()
        for encoder in self._encoders:
            for base in ("prompt", "negative_prompt"):
                field = base + encoder.suffix if base + encoder.suffix in options else base
                text = asked.prompt if field == "prompt" else str(options.get(field, ""))
                if field not in found and encoder.cuts(text, encoder.tokens or length):
                    found.add(field)
        return tuple(sorted(found))


def _encoders(directory: Path) -> Iterator[_Encoder]:
    swapped = pipeline_class(directory).startswith("StableDiffusionXL")  # its second one reads `prompt`
    suffixes = {"text_encoder": "_2", "text_encoder_2": ""} if swapped else {}
    for name, kind in text_encoders(directory).items():
        if kind.startswith((CLIP, T5)):
            tokenizer = ov_genai.Tokenizer(str(directory / name.replace("text_encoder", "tokenizer")))
            tokens = _positions(directory / name) if kind.startswith(CLIP) else 0
            # Tokenizers that were converted long ago cut by themselves, at the length of the model.
            whole = not tokens or _count(tokenizer, "a b " * tokens) > tokens
            yield _Encoder(tokenizer, suffixes.get(name, name.removeprefix("text_encoder")), tokens, whole)


def _positions(encoder: Path) -> int:
    config = json.loads((encoder / "config.json").read_text("utf-8"))
    return int(config.get("max_position_embeddings", CLIP_TOKENS))


def _count(tokenizer: Any, text: str) -> int:
    """Count the tokens, without those that fill up."""
    return int(tokenizer.encode(text).attention_mask.data.sum())
