"""Fill in the middle: the prompt that makes a code model write what stands between two texts.

Models were trained on it with special tokens, which `MARKS` lists. A model can do it if its vocabulary has
all three as single tokens, which `detect` asks its tokenizer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import chain

import msgspec

from ovserve.errors import UnsupportedParameter
from ovserve.llm.request import Sampling


class Marks(msgspec.Struct, frozen=True):
    """The texts before the prefix, before the suffix, and before the answer.

    With `suffix_first` the suffix stands before the prefix, and nothing before the answer.
    """

    prefix: str
    suffix: str
    middle: str
    suffix_first: bool = False

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(mark.strip() for mark in (self.prefix, self.suffix, self.middle) if mark)


class Fim(msgspec.Struct, frozen=True):
    """The marks of a model, and the tokens at which its middle ends, besides the model's own end."""

    marks: Marks
    stop_token_ids: tuple[int, ...] = ()


def _deepseek(*words: str) -> str:
    """A token of DeepSeek's: between full-width bars, with SentencePiece's space."""
    return "<\uff5c" + "\u2581".join(words) + "\uff5c>"


MARKS = (
    Marks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    Marks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    Marks("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    Marks(_deepseek("fim", "begin"), _deepseek("fim", "hole"), _deepseek("fim", "end")),  # DeepSeek-Coder
    Marks("[PREFIX]", "[SUFFIX]", "", suffix_first=True),  # Codestral
    Marks("<PRE> ", " <SUF>", " <MID>"),  # Code Llama
)
# Where a middle ends, for models that have such a token: the end of a text, or of a file in a repository.
ENDS = (
    "<|endoftext|>", "<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "<|file_separator|>", "<file_sep>",
    "<fim_pad>", _deepseek("end", "of", "sentence"), "<EOT>",
)  # fmt: skip

Tokenize = Callable[[Sequence[str]], Awaitable[list[list[int]]]]


async def detect(tokenize: Tokenize) -> Fim | None:
    """Return the marks that a vocabulary has. `tokenize` returns ids without the tokens that frame a text."""
    texts = list(dict.fromkeys([*chain.from_iterable(marks.tokens for marks in MARKS), *ENDS]))
    rows = dict(zip(texts, await tokenize(texts), strict=True))
    single = {text: row[0] for text, row in rows.items() if len(row) == 1}
    unknown = {id_ for id_ in single.values() if list(single.values()).count(id_) > 1}  # one for all of them
    token_ids = {text: id_ for text, id_ in single.items() if id_ not in unknown}
    for marks in MARKS:
        if all(token in token_ids for token in marks.tokens):
            ends = [token_ids[text] for text in (*ENDS, *marks.tokens) if text in token_ids]
            return Fim(marks, tuple(dict.fromkeys(ends)))
    return None


def ending_middle(fim: Fim | None, sampling: Sampling) -> Sampling:
    ends = fim.stop_token_ids if fim is not None else ()
    return msgspec.structs.replace(
        sampling, stop_token_ids=tuple(dict.fromkeys((*sampling.stop_token_ids, *ends)))
    )


def middle_prompt(fim: Fim | None, prefix: str, suffix: str) -> str:
    """Return the prompt whose answer stands between the two. Raises UnsupportedParameter."""
    if fim is None:
        raise UnsupportedParameter(
            "suffix: this model has no tokens to fill in the middle; code models such as Qwen2.5-Coder do",
            param="suffix",
        )
    marks = fim.marks
    if marks.suffix_first:
        return f"{marks.suffix}{suffix}{marks.prefix}{prefix}"
    return f"{marks.prefix}{prefix}{marks.suffix}{suffix}{marks.middle}"
