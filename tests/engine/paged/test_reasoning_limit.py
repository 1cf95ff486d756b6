"""Where a limit ends the reasoning, by tokens of any cut; over every cut of the tags and of the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ovserve.kinds.text.worker.paged.reasoning import ReasoningLimit
from ovserve.llm.request import ReasoningBudget

THINK = ReasoningBudget(2, starts=("<think>",), ends=("</think>",), closing="</think>")
CLOSING = (900, 901)


def followed(said: Sequence[str | bytes], budget: ReasoningBudget = THINK, **more: Any) -> list[str | bytes]:
    """The answer of a model that says these tokens, where it may: those that were forced are "!"."""
    texts = [token.encode() if isinstance(token, str) else token for token in said]
    limit = ReasoningLimit(msgspec.structs.replace(budget, **more), CLOSING, texts.__getitem__)
    found: list[str | bytes] = []
    for at, token in enumerate(said):
        while (forced := limit.forced) is not None:
            assert forced == CLOSING[found.count("!") % len(CLOSING)]
            limit.append(forced)
            found.append("!")
        found.append(token)
        limit.append(at)
    return found


@pytest.mark.parametrize(
    "begin", [["<think>"], ["\n", "<", "think", ">"], [" <th", "ink>"], ["<", "think>\n"]]
)
@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_reasoning_is_closed_after_so_many_tokens(begin: list[str], tokens: int) -> None:
    said = followed([*begin, *"abcdef"], tokens=tokens)
    assert said == [*begin, *"abcdef"[:tokens], "!", "!", *"abcdef"[tokens:]]


def test_reasoning_that_the_prompt_opened_counts_from_the_first_token() -> None:
    assert followed("abcd", inside=True) == ["a", "b", "!", "!", "c", "d"]
    assert followed("ab", inside=True, tokens=0) == ["!", "!", "a", "b"]


@pytest.mark.parametrize("end", [["</think>"], ["<", "/think", ">"], ["b</th", "ink>\n\n"]])
def test_reasoning_that_ends_by_itself_is_left_alone(end: list[str]) -> None:
    """Also where its end is longer than what is left, as long as the budget is not reached before it."""
    said = ["<think>", *end, "c", "d", "<think>", "e", "f", "g"]
    assert followed(said, tokens=len(end)) == said  # later tags are text, as for the parser


@pytest.mark.parametrize(
    "tag", [["`</think>`"], [*"'</think>'"], ['"</th', 'ink>"'], ["say `", "</think>", "`."]]
)
def test_a_tag_between_quotes_ends_no_reasoning(tag: list[str]) -> None:
    """To the parser it is thought, too: the budget holds on behind it."""
    said = ["<think>", *tag, *"abcd"]
    assert followed(said, tokens=len(tag) + 2) == [*said[:-2], "!", "!", *"cd"]
    assert followed(["<think>", "`</think>", "x", "y"], tokens=2) == ["<think>", "`</think>", "x", "y"]
    assert followed(said, tokens=len(tag) + 2, held=True) == said, "an answer that a grammar holds has begun"


def test_an_answer_without_reasoning_is_left_alone() -> None:
    for said in (["a", "<think>", *"bcdef"], ["<thin", "g>", "<think>", *"abc"]):
        assert followed(said) == said


def test_frames_may_have_several_parts_of_reasoning_with_one_budget() -> None:
    said = ["<think>", "a", "</think>", "b", "<think>", "c", "d", "<think>", "e"]
    assert followed(said, anywhere=True, tokens=4) == [*said[:6], "d", "!", "!", "<think>", "!", "!", "e"]


def test_no_character_is_cut_in_two_and_broken_bytes_do_not_defer_the_end() -> None:
    parts: list[bytes] = [bytes([byte]) for byte in "🎉x".encode()]
    assert followed(parts, inside=True) == [*parts[:4], "!", "!", parts[4]]
    broken = [b"\xf0"] * 9
    assert followed(broken, inside=True)[5:7] == ["!", "!"]
