"""An answer that only repeats itself ends (ovserve.kinds.text.worker.decoding.repetition)."""

from __future__ import annotations

import json
from collections.abc import Sequence as Ids

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovserve.api.openai.completions import Completions
from ovserve.kinds.text.worker.decoding import (
    CHECK_INTERVAL,
    MAX_PATTERN,
    WINDOW_TOKENS,
    Part,
    RepetitionDetector,
    Sequence,
)
from ovserve.llm.model import ModelContext
from ovserve.llm.request import Sampling

LENGTH = 2 * WINDOW_TOKENS


def end_of(ids: Ids[int], pieces: Ids[int]) -> int | None:
    """Where a detector ends these ids, which come in pieces of these lengths, again and again."""
    detector, at, turn = RepetitionDetector(), 0, 0
    while at < len(ids):
        size = pieces[turn % len(pieces)]
        if (count := detector.find(ids[at : at + size])) is not None:
            return at + count
        at, turn = at + size, turn + 1
    return None


def slow_end(ids: Ids[int]) -> int | None:
    """The same by the rule's own words."""
    for end in range(WINDOW_TOKENS, len(ids) + 1, CHECK_INTERVAL):
        tail = list(ids[end - WINDOW_TOKENS : end])
        patterns = (tail[:size] for size in range(1, MAX_PATTERN + 1))
        if any((pattern * WINDOW_TOKENS)[:WINDOW_TOKENS] == tail for pattern in patterns):
            return end
    return None


def repeated(before: int, pattern: int, length: int) -> list[int]:
    """Ids that differ from each other, then a pattern of such ids again and again."""
    return [*range(1000, 1000 + before), *(i % pattern for i in range(length))]


pieces = st.lists(st.integers(1, 700), min_size=1, max_size=5)


@settings(deadline=None)
@given(st.integers(0, 600), st.integers(1, MAX_PATTERN + 2), st.integers(0, LENGTH), pieces)
def test_the_end_is_that_of_the_rule_however_the_tokens_come(
    before: int, pattern: int, length: int, sizes: list[int]
) -> None:
    ids = [*repeated(before, pattern, length), *range(500, 600)]
    assert end_of(ids, sizes) == slow_end(ids)


@settings(deadline=None)
@given(st.lists(st.integers(0, 1), min_size=WINDOW_TOKENS, max_size=LENGTH), pieces)
def test_few_different_tokens_are_no_repetition(ids: list[int], sizes: list[int]) -> None:
    assert end_of(ids, sizes) == slow_end(ids)


@pytest.mark.parametrize("pattern", [1, 2, 7, 63, MAX_PATTERN])
@pytest.mark.parametrize("before", [0, 1, 40, 5000])
def test_every_pattern_is_found_within_a_stride(pattern: int, before: int) -> None:
    end = end_of(repeated(before, pattern, LENGTH), [1])
    assert end is not None
    assert before + WINDOW_TOKENS <= end < before + WINDOW_TOKENS + CHECK_INTERVAL


@pytest.mark.parametrize("pattern", [1, 2, 7, MAX_PATTERN])
def test_what_is_shorter_than_the_limit_or_changes_in_each_line_goes_on(pattern: int) -> None:
    short = repeated(3, pattern, WINDOW_TOKENS - 1)
    assert end_of([*short, *range(2000, 3000)], [3]) is None
    numbered = [token for line in range(500) for token in (*range(pattern), 5000 + line)]
    assert end_of(numbered, [3]) is None


def answer(ids: list[int], size: int, **sampling: object) -> Sequence:
    made = Sequence(None, 1, Sampling(**sampling), 2, frozenset({0}), frozenset({0}))  # type: ignore[arg-type]
    for at in range(0, len(ids), size):
        piece = ids[at : at + size]
        made.process([Part(piece, [-0.5] * len(piece), 0.0, None)])
        if made.finished:
            break
    return made


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_tokens_after_the_end_are_no_part_of_the_answer(size: int) -> None:
    made = answer([65] * LENGTH, size, repetition_detection=True, logprobs=True)
    (branch,) = made.branches
    assert (branch.output.finish, branch.output.repetitive) == ("length", True)
    assert branch.output.total == len(branch.scored) == WINDOW_TOKENS
    (item,) = made.advance(iter("".join("A" for _ in row) for row in made.rows()))
    assert (item.text, item.finish_reason, item.last, item.repetitive) == (
        "A" * WINDOW_TOKENS,
        "length",
        True,
        True,
    )


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_an_end_by_the_model_before_it_is_one(size: int) -> None:
    made = answer([65] * (WINDOW_TOKENS - 1) + [0] + [65] * LENGTH, size, repetition_detection=True)
    output = made.branches[0].output
    assert (output.finish, output.repetitive, output.total) == ("stop", False, WINDOW_TOKENS)


def test_without_the_option_it_goes_on() -> None:
    assert not answer([65] * LENGTH, 5).finished


def test_a_stop_string_in_the_last_tokens_is_the_reason() -> None:
    made = answer([66] * (WINDOW_TOKENS - 1) + [66], 1000, repetition_detection=True, stop=("BBB",))
    (item,) = made.advance(iter("".join("B" for _ in row) for row in made.rows()))
    assert (item.text, item.finish_reason, item.repetitive) == ("", "stop", False)


@pytest.mark.parametrize(
    ("fields", "model", "expected"),
    [
        ({}, ModelContext(), True),
        ({"min_tokens": 0, "ignore_eos": False, "max_tokens": 2000}, ModelContext(), True),
        ({"min_tokens": 1}, ModelContext(), False),
        ({"ignore_eos": True}, ModelContext(), False),
        ({}, ModelContext(repetition_detection=False), False),
    ],
)
def test_a_client_that_asks_for_a_length_and_an_operator_turn_it_off(
    fields: dict[str, object], model: ModelContext, expected: bool
) -> None:
    endpoint = Completions()
    body = endpoint.decode(json.dumps({"model": "m", "prompt": "x", **fields}).encode())
    assert endpoint.to_request(body, model).sampling.repetition_detection is expected
