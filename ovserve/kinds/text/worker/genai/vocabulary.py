"""The tokens of a model as bytes, of which masks of grammars are made."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import openvino_genai as ov_genai

from ovserve.engine.model.files import read_model_files
from ovserve.errors import LoadError
from ovserve.kinds.text.worker.genai.options import sentence, writable


class Vocabulary(NamedTuple):
    texts: list[bytes]  # by id; empty where a token is not text of an answer
    eos_ids: tuple[int, ...]
    logits: int


def vocabulary(
    tokenizer: ov_genai.Tokenizer, tokens: dict[bytes, int], eos_ids: Iterable[int], logits: int
) -> Vocabulary:
    """`tokens`: its `get_vocab()`. `logits`: how many the model has in a row; 0: as many as tokens.

    The tokens that begin a text and fill it up are not in answers, so a grammar must not count on them.
    Markers like `<tool_call>` are text.
    """
    logits = logits or max(tokens.values(), default=-1) + 1
    unseen = {tokenizer.get_bos_token_id(), tokenizer.get_pad_token_id()}
    texts = [b""] * logits
    for text, id_ in tokens.items():
        if id_ < logits and id_ not in unseen:
            texts[id_] = text
    return Vocabulary(texts, tuple(eos_ids), logits)


def read_vocabulary(model_path: str) -> Vocabulary:
    """Read it without the model. Raises LoadError."""
    files = read_model_files(model_path)
    try:
        with writable(model_path) as path:
            tokenizer = ov_genai.Tokenizer(path)
    except (RuntimeError, TypeError) as error:
        raise LoadError(sentence(error), file=model_path) from error
    ends = dict.fromkeys((*files.end_token_ids, tokenizer.get_eos_token_id()))
    return vocabulary(tokenizer, tokenizer.get_vocab(), (id_ for id_ in ends if id_ >= 0), files.vocab_size)


def check_draft_tokens(draft_path: str, tokenizer: ov_genai.Tokenizer, draft_logits: int) -> None:
    """Raises LoadError for a draft model whose tokens are not the tokenizer's. One without any is trusted."""
    field, tokens = "draft_models_path", tokenizer.get_vocab()
    if draft_logits <= max(tokens.values(), default=-1):
        why = f"the draft model has {draft_logits} tokens, and the model has {len(tokens)}"
        raise LoadError(why, field=field)
    path = Path(draft_path)
    if (path / "openvino_tokenizer.xml").is_file() and ov_genai.Tokenizer(path).get_vocab() != tokens:
        raise LoadError("the tokenizers of the draft model and of the model differ", field=field)
