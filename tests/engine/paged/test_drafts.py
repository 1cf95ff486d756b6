"""Drafts: what is found, and when it is worth a longer step."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from ovserve.engine.backends.paged.drafts import MOST, MOST_STREAMS, SIZES, Lookup, StepCosts


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.lists(st.integers(0, 3), max_size=20))
def test_candidates_followed_the_same_tokens_before(begins: list[int], grows: list[int]) -> None:
    ids = array("q", begins)
    lookup = Lookup(ids, MOST)
    for token in [*grows, 0]:
        found, _rate = lookup.find()
        tail = ids.tolist()
        if found:
            assert any(
                tail[at - size : at] == tail[-size:] and tail[at : at + len(found)] == list(found)
                for size in SIZES
                for at in range(size, len(tail))
            )
        else:
            assert not any(tail[at - 3 : at] == tail[-3:] for at in range(3, len(tail)))
        ids.append(token)


def test_what_is_wrong_is_drafted_less_and_tried_again() -> None:
    ids = array("q", [1, 2, 3, 9, 1, 2, 3])
    lookup = Lookup(ids, 3)
    found, rate = lookup.find()
    assert found == (9, 1, 2)
    for _ in range(10):
        lookup.find()
        lookup.checked(3, 0)
    low = lookup.find()[1]
    assert low < rate / 2
    for _ in range(100):
        lookup.find()
        lookup.skipped()
    assert lookup.find()[1] > rate


def test_counts_of_one_step() -> None:
    lookup = Lookup(array("q", [1, 2, 3]), 3)
    assert lookup.read([5], 1) == (0, 0)
    lookup.checked(3, 2)
    assert lookup.read([5, 6, 7], 3) == (3, 2)
    lookup.checked(3, 2)
    assert lookup.read([5, 6, 7], 1) == (3, 1), "the rest is after the end of the answer"
    assert lookup.read([5], 1) == (0, 0)


def test_steps_that_take_longer_are_not_worth_it() -> None:
    costs = StepCosts()
    costs.measured(1, 1, 0.01)
    costs.measured(8, 8, 0.02)
    assert costs.best(1, 0.9, 4) > 0
    for rows in range(2, 6):
        costs.measured(1, rows, 0.1)
    assert costs.best(1, 0.9, 4) == 0
    assert costs.best(1, 0.0, 4) == 0


def test_one_slow_step_is_forgotten() -> None:
    costs = StepCosts()
    costs.measured(1, 1, 0.01)
    costs.measured(1, 4, 0.1)
    assert any(costs.best(1, 0.9, 3) == 3 for _ in range(400))


def test_others_pay_for_candidates() -> None:
    costs = StepCosts()
    alone, beside = (costs.best(n, 0.6, MOST) for n in (1, MOST_STREAMS))
    assert alone > beside
