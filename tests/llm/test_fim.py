"""Which models fill in the middle, and the prompts they get."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ovserve.errors import UnsupportedParameter
from ovserve.llm.fim import Fim, detect, ending_middle, middle_prompt
from ovserve.llm.request import Sampling

QWEN = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|endoftext|>", "<|fim_pad|>"]
DEEPSEEK = ["<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"]


async def found(vocabulary: list[str], unknown: int | None = None) -> Fim | None:
    """`unknown`: the one id of all other texts; without it they are two tokens."""

    async def tokenize(texts: Sequence[str]) -> list[list[int]]:
        other = [unknown] if unknown is not None else [900, 901]
        return [[vocabulary.index(text)] if text in vocabulary else other for text in texts]

    return await detect(tokenize)


@pytest.mark.parametrize(
    ("vocabulary", "prompt"),
    [
        (QWEN, "<|fim_prefix|>ab<|fim_suffix|>yz<|fim_middle|>"),
        (DEEPSEEK, f"{DEEPSEEK[0]}ab{DEEPSEEK[1]}yz{DEEPSEEK[2]}"),
        (["[PREFIX]", "[SUFFIX]"], "[SUFFIX]yz[PREFIX]ab"),
        (["<PRE>", "<SUF>", "<MID>", "<EOT>"], "<PRE> ab <SUF>yz <MID>"),
    ],
)
async def test_the_prompt_has_the_marks_of_the_model(vocabulary: list[str], prompt: str) -> None:
    assert middle_prompt(await found(vocabulary), "ab", "yz") == prompt


async def test_a_middle_ends_where_a_text_or_file_does() -> None:
    fim = await found(QWEN)
    made = ending_middle(fim, Sampling(max_tokens=1, stop_token_ids=(7, 3)))
    assert made.stop_token_ids[:2] == (7, 3)
    assert set(made.stop_token_ids) == {7, 0, 1, 2, 3, 4}


@pytest.mark.parametrize("unknown", [None, 5])
async def test_other_models_cannot(unknown: int | None) -> None:
    fim = await found(["<|fim_prefix|>", "<|endoftext|>"], unknown)
    assert fim is None
    with pytest.raises(UnsupportedParameter, match="no tokens to fill in the middle"):
        middle_prompt(fim, "a", "b")
