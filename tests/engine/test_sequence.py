"""What one request makes of the ids it gets, without a library (ovserve.kinds.text.worker.decoding)."""

from __future__ import annotations

from typing import Any

from ovserve.kinds.text.worker.decoding import Part, Sequence
from ovserve.llm.request import Sampling

LETTERS = {i: chr(i) for i in range(128)}


def sequence(**sampling: Any) -> Sequence:
    return Sequence(None, 1, Sampling(**sampling), 2, frozenset({0}), frozenset({0}))


def advance(made: Sequence) -> list[Any]:
    rows = made.rows()
    return made.advance(iter("".join(LETTERS[i] for i in row) for row in rows))


def part(text: str, score: float = 0.0, finish: str | None = "length") -> Part:
    return Part([ord(c) for c in text], [-0.5] * len(text), score, finish)


def test_beams_come_best_first_and_only_the_last_item_ends_the_request() -> None:
    made = sequence(beams=3, n=2)
    made.process([part("bad", -3.0), part("best", -1.0), part("good", -2.0)])
    items = advance(made)
    assert [(i.index, i.text, i.last) for i in items] == [(0, "best", False), (1, "good", True)]


def test_fewer_beams_than_asked_for_still_end_the_request() -> None:
    made = sequence(beams=3, n=3)
    made.process([part("only", -1.0)])
    items = advance(made)
    assert [(i.index, i.text, i.finish_reason) for i in items] == [
        (0, "only", "length"),
        (1, "", "stop"),
        (2, "", "stop"),
    ]
    assert items[-1].last


def test_an_echoed_prompt_is_scored_but_neither_counted_nor_text() -> None:
    made = sequence(echo=True, logprobs=True)
    made.process([Part([80, 81, 65], [1.0, -0.7, -0.2], 0.0, None)])
    assert made.branches[0].scored == [(80, None, ()), (81, -0.7, ()), (65, -0.2, ())]
    (item,) = advance(made)
    assert (item.text, item.tokens) == ("A", 1)


def test_an_end_token_counts_and_is_no_text() -> None:
    made = sequence()
    made.process([Part([65, 0, 66], [0.0] * 3, 0.0, None)])
    (item,) = advance(made)
    assert (item.text, item.tokens, item.finish_reason, item.last) == ("A", 2, "stop", True)


def test_what_a_step_drafted_behind_a_stop_string_does_not_count() -> None:
    for steps in (["abcde"], ["abc", "de"], ["ab", "cd", "e"], [*"abcde"]):
        made, items = sequence(stop=("x", "bc"), logprobs=True), []
        for step in steps:
            if not made.finished:
                made.process([part(step, finish=None)])
                items += advance(made)
        assert "".join(item.text for item in items) == "a"
        assert sum(item.tokens for item in items) == made.generated == 3
        assert items[-1].finish_reason == "stop"


def test_nothing_read_means_that_the_cache_is_full() -> None:
    made = sequence()
    made.process([])
    assert made.cache_full
    assert made.finished
