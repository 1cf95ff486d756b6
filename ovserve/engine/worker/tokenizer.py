"""The conversation of a process that only tokenises."""

from __future__ import annotations

import os
from array import array
from typing import Protocol

from ovserve.engine.protocol.frames import Channel, FrameError
from ovserve.engine.protocol.messages import (
    Detokenize,
    Detokenized,
    Failed,
    Ready,
    Stop,
    ToEngine,
    Tokenize,
    Tokenized,
)
from ovserve.engine.protocol.specs import Facts, TokenizerSpec
from ovserve.errors import OvserveError

NICE = 5  # the engine's steps come first


class Tokenizer(Protocol):
    def tokenize(self, texts: tuple[str, ...], add_special_tokens: bool) -> list[list[int]]: ...
    def detokenize(
        self, rows: tuple[tuple[int, ...], ...], skip_special_tokens: bool, escaped: bool
    ) -> list[str]: ...


def run(channel: Channel[ToEngine], tokenizer: Tokenizer) -> int:
    os.nice(NICE)
    channel.send(Ready.of(Facts()))
    while True:
        for message in channel.receive(block=True):
            if isinstance(message, Stop):
                return 0
            channel.send(_answer(tokenizer, message))


def _answer(tokenizer: Tokenizer, asked: ToEngine) -> Tokenized | Detokenized | Failed:
    if not isinstance(asked, Tokenize | Detokenize):
        raise FrameError("this process only tokenises")
    try:
        if isinstance(asked, Detokenize):
            return Detokenized(
                asked.id, tokenizer.detokenize(asked.ids, asked.skip_special_tokens, asked.escaped)
            )
        rows = tokenizer.tokenize(asked.texts, asked.add_special_tokens)
    except OvserveError as error:
        return Failed(asked.id, error.kind, error.message, error.param)
    if asked.packed:
        return Tokenized(asked.id, [], [array("i", row).tobytes() for row in rows])
    return Tokenized(asked.id, rows)


def load(spec: TokenizerSpec) -> Tokenizer:
    """Raises LoadError."""
    if spec.scripted:
        from ovserve.kinds.text.worker.scripted import words_of

        return words_of(spec.model_path)
    from ovserve.kinds.text.worker.genai.text import open_text

    return open_text(spec, spec.facts)
