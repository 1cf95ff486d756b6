"""The tokenizer of a .gguf file, checked: its kind, its tokens, and how it splits a text before it merges.

A file names its pre-tokenizer, and each reader has to know the rule. Rules that split by regular expression
are here under the file's names; other names are refused, because a wrong rule gives other tokens without a
sign. Source: https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp, read 2026-11-26
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ovserve.engine.model.gguf import GGUF, ArrayLength, GGUFError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of tokens
BYTE_LEVEL, SENTENCEPIECE = MODELS = ("gpt2", "llama")
NO_IDS = (-1, (1 << 32) - 1)  # as converters write that there is no such token
# Tokens that end an answer whatever their type, which files often do not name, as in llama.cpp. Its list has
# "</s>" too, which in Gemma's vocabulary is a tag of HTML.
END_TEXTS = (
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<end_of_utterance>",
    "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<\uff5cend▁of▁sentence\uff5c>",
    "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|return|>", "<|call|>",
)  # fmt: skip
HARMONY_ENDS = {"<|return|>", "<|call|>"}  # with these in a vocabulary, as gpt-oss's, "<|end|>" ends one of
MESSAGE_END = "<|end|>"  # several messages of an answer


def _span(span: str) -> str:
    """Return a part of a class, of hexadecimal numbers of characters."""
    return "-".join(rf"\x{{{end}}}" for end in span.split("-"))


_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_SEED = _QWEN2.replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+")
_DEEPSEEK_CJK = r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+"
_DEEPSEEK_ASIAN = r"[\x{4e00}-\x{9fa5}\x{0800}-\x{4e00}\x{ac00}-\x{d7ff}]+"
# Letters that have two cases, as a file of DeepSeek lists them.
_CASED = (
    "41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a "
    "38c 38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf "
    "1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d "
    "1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 "
    "1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128 212a-212d 212f-2134 2139 213c-213f "
    "2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d a680-a69b a722-a76f "
    "a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 "
    "104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943"
)
_DEEPSEEK_WORD = rf"\s?[{''.join(_span(span) for span in _CASED.split())}]+"
_DEEPSEEK_SIGNS = r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SLASH_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = rf"{_WORD}{_UPPER}*{_LOWER}+|{_WORD}{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASH_REST}"
_GPT4O = (
    rf"{_WORD}{_UPPER}*{_LOWER}+{_ENGLISH}?|{_WORD}{_UPPER}+{_LOWER}*{_ENGLISH}?|"
    rf"\p{{N}}{{1,3}}|{_SLASH_REST}"
)
_NO_HAN_UPPER, _NO_HAN_LOWER = (rf"(?:(?!\p{{Han}}){case})" for case in (_UPPER, _LOWER))
_KIMI = (
    rf"\p{{Han}}+|{_WORD}{_NO_HAN_UPPER}*{_NO_HAN_LOWER}+{_ENGLISH}?|"
    rf"{_WORD}{_NO_HAN_UPPER}+{_NO_HAN_LOWER}*{_ENGLISH}?|\p{{N}}{{1,3}}|{_REST}"
)
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Rule(NamedTuple):
    """A rule by which texts are split, by each expression in turn, before pairs are merged."""

    splits: tuple[str, ...]
    nfc: bool = False
    whole: bool = False  # a piece that is a token as a whole is not split
    begins: bool = False  # texts begin with a token of their own, if the file does not say


GPT2_NAMES = ("gpt-2", "phi-2", "olmo", "mellum", "gigachat", "a.x-4.0", "exaone4", "granite-docling")
DIGIT_NAMES = ("smollm", "starcoder", "refact", "command-r", "exaone", "codeshell", "minerva-7b", "mellum2")
LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2")
QWEN2_NAMES = ("bailingmoe", "stablelm2", "hunyuan", "solar-open", "megrez", "kormo", "f2llmv2", "grok-2")
RULES = {
    "default": Rule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    **dict.fromkeys(GPT2_NAMES, Rule((_GPT2,))),
    **dict.fromkeys(DIGIT_NAMES, Rule((r"\p{N}", _GPT2))),
    **dict.fromkeys(LLAMA3_NAMES, Rule((_LLAMA3,), whole=True, begins=True)),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), Rule((_LLAMA3,))),
    "glm4": Rule((_LLAMA3,), whole=True),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), Rule((_QWEN2,), nfc=True)),
    **dict.fromkeys(QWEN2_NAMES, Rule((_QWEN2,))),
    "tekken": Rule((_TEKKEN,), whole=True, begins=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie"), Rule((_GPT4O,))),
    "seed-coder": Rule((_SEED,)),
    "deepseek-coder": Rule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_ASIAN, r"\p{N}")),
    "deepseek-llm": Rule(
        (r"[\r\n]", _DEEPSEEK_WORD, _DEEPSEEK_SIGNS, r"\s+$", _DEEPSEEK_ASIAN, r"\p{N}+"),
    ),
    "kimi-k2": Rule((_KIMI,)),
    "deepseek-v3": Rule((r"\p{N}{1,3}", _DEEPSEEK_CJK, _DEEPSEEK3)),
}


class Tokens(msgspec.Struct, frozen=True):
    """`rule` is for byte-level BPE. A token that begins or ends every text is None if there is none."""

    model: str
    size: int
    rule: Rule
    add_prefix: bool = False  # a space before each text
    begin: int | None = None
    end: int | None = None
    bos: int | None = None
    eos: int | None = None
    padding: int | None = None
    ends: tuple[int, ...] = ()  # tokens that end an answer
    strips: bool = False  # spaces and line breaks behind special tokens are dropped


def read_tokens(gguf: GGUF, vocabulary: int) -> Tokens:
    """`vocabulary`: rows of the embedding. Raises GGUFError."""
    metadata = gguf.metadata
    model = metadata.get("tokenizer.ggml.model")
    if model not in MODELS:
        raise GGUFError(f"tokenizer.ggml.model: expected {' or '.join(MODELS)}, got {model!r}")
    size = _length(gguf, "tokenizer.ggml.tokens")
    if not 0 < size <= vocabulary:
        raise GGUFError(f"tokenizer.ggml.tokens: {size} tokens, and token_embd.weight has {vocabulary} rows")
    rule = _rule(gguf) if model == BYTE_LEVEL else Rule(())
    if model == SENTENCEPIECE and _length(gguf, "tokenizer.ggml.scores") != size:
        raise GGUFError(f"tokenizer.ggml.scores: expected one for each of {size} tokens")
    if "tokenizer.ggml.token_type" in metadata and _length(gguf, "tokenizer.ggml.token_type") != size:
        raise GGUFError(f"tokenizer.ggml.token_type: expected one for each of {size} tokens")
    if metadata.get("tokenizer.ggml.remove_extra_whitespaces") is True:
        raise GGUFError("tokenizer.ggml.remove_extra_whitespaces: true is not supported")
    ids = {name: _id(gguf, f"tokenizer.ggml.{name}_token_id", size) for name in ("bos", "eos", "eot", "eom")}
    padding = metadata.get("tokenizer.ggml.padding_token_id")
    begins = metadata.get("tokenizer.ggml.add_bos_token", rule.begins or model == SENTENCEPIECE)
    ends = metadata.get("tokenizer.ggml.add_eos_token", False)
    for name, adds in (("bos", begins), ("eos", ends)):
        if adds is True and ids[name] is None and f"tokenizer.ggml.add_{name}_token" in metadata:
            raise GGUFError(f"tokenizer.ggml.add_{name}_token: true, and there is no {name}_token_id")
    texts = gguf.array("tokenizer.ggml.tokens")
    by_text = {text: i for i, text in enumerate(texts) if text in END_TEXTS}
    end_ids = dict.fromkeys((ids["eos"], ids["eot"], ids["eom"], *by_text.values()))
    if by_text.keys() >= HARMONY_ENDS:
        end_ids.pop(by_text.get(MESSAGE_END), None)
    names = f"{metadata.get('general.architecture')} {metadata.get('general.name')}".lower()
    return Tokens(
        str(model),
        size,
        rule,
        add_prefix=model == SENTENCEPIECE and metadata.get("tokenizer.ggml.add_space_prefix") is not False,
        begin=ids["bos"] if begins is True else None,
        end=ids["eos"] if ends is True else None,
        bos=ids["bos"],
        eos=ids["eos"],
        padding=padding if type(padding) is int and 0 <= padding < size else None,
        ends=tuple(id_ for id_ in end_ids if id_ is not None),
        strips=model == SENTENCEPIECE and "phi3" in names.replace("-", "").replace(" ", ""),
    )


def token_types(gguf: GGUF, texts: Sequence[str]) -> list[str | float]:
    """Return a type for each token; without any in the file, all that do not end answers are ordinary."""
    key = "tokenizer.ggml.token_type"
    types = gguf.array(key) if key in gguf.metadata else [NORMAL] * len(texts)
    if isinstance(types[0], str):
        raise GGUFError(f"{key}: expected numbers, got texts")
    return [CONTROL if text in END_TEXTS else kind for text, kind in zip(texts, types, strict=True)]


def _rule(gguf: GGUF) -> Rule:
    name = gguf.metadata.get("tokenizer.ggml.pre", "default")
    rule = RULES.get(name) if isinstance(name, str) else None
    if rule is None:
        raise GGUFError(f"tokenizer.ggml.pre: {str(name)[:80]!r} is not known; known are {', '.join(RULES)}")
    if not _length(gguf, "tokenizer.ggml.merges"):
        raise GGUFError("tokenizer.ggml.merges: expected the pairs that are merged, got none")
    return rule


def _length(gguf: GGUF, key: str) -> int:
    value = gguf.metadata.get(key)
    if not isinstance(value, ArrayLength):
        raise GGUFError(f"{key} is missing" if value is None else f"{key}: expected an array, got {value!r}")
    return value.items


def _id(gguf: GGUF, key: str, size: int) -> int | None:
    value = gguf.metadata.get(key)
    if value is None or value in NO_IDS:
        return None
    if type(value) is not int or not 0 <= value < size:
        raise GGUFError(f"{key}: expected the number of a token below {size}, got {value!r}")
    return value
