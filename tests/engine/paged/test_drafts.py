"""Drafts: what is found, and when it is worth a longer step."""

from __future__ import annotations

from array import array
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovserve.kinds.text.worker.paged.drafts import (
    CHANGED_FORM_COST,
    EXTRA_ROW_COST,
    MAX_DRAFT_TOKENS,
    MAX_DRAFTED_STREAMS,
    NGRAM_SIZES,
    NgramDrafter,
    StepCosts,
)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.lists(st.integers(0, 3), max_size=20))
def test_candidates_followed_the_same_tokens_before(begins: list[int], grows: list[int]) -> None:
    ids = array("q", begins)
    drafter = NgramDrafter(ids, MAX_DRAFT_TOKENS)
    for token in [*grows, 0]:
        found, _rate = drafter.propose()
        tail = ids.tolist()
        if found:
            assert any(
                tail[at - size : at] == tail[-size:] and tail[at : at + len(found)] == list(found)
                for size in NGRAM_SIZES
                for at in range(size, len(tail))
            )
        else:
            assert not any(tail[at - 3 : at] == tail[-3:] for at in range(3, len(tail)))
        ids.append(token)


def test_edited_text_goes_on_where_it_was() -> None:
    ids = array("q", [1, 2, 3, 9, 1, 2, 4, 9])
    drafter = NgramDrafter(ids, 3)
    for token in (1, 2, 3, 9, 1, 2):
        drafter.propose()
        ids.append(token)
    assert drafter.propose()[0] == (4, 9, 1), "3 followed 9, 1, 2 more lately, but in the answer"


def test_a_rate_follows_what_came_with_and_without_candidates_in_the_step() -> None:
    ids = array("q", [1, 2, 3, 9, 1, 2, 3])
    drafter = NgramDrafter(ids, 3)
    found, first = drafter.propose()
    assert found == (9, 1, 2)
    assert drafter.select(found, 0, 0.0) == ()
    ids.append(9)
    assert drafter.select(*after(drafter)) == ()
    higher = drafter.propose()[1]
    assert higher > first
    drafter.record_verified(3, 0, 1.0)
    assert drafter.propose()[1] < higher


def after(drafter: NgramDrafter) -> tuple[tuple[int, ...], int, float]:
    found, _rate = drafter.propose()
    return found, 0, 0.0


def test_candidates_are_in_a_step_once_they_have_saved_time_in_shadow() -> None:
    ids = array("q", [1, 2, 3, 4, 5, 6, 7, 1, 2, 3])
    drafter = NgramDrafter(ids, 2)
    chosen = []
    for token in (4, 5, 6, 7, 1, 2, 3):
        found, _rate = drafter.propose()
        chosen.append(drafter.select(found, 2, 0.5))
        ids.append(token)
    assert chosen == [(), (), (), (), (), (), (3, 4)]


def test_what_loses_is_a_shadow_draft_again() -> None:
    ids = array("q", [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5])
    drafter = NgramDrafter(ids, 2)
    for _ in range(10):
        drafter.record_verified(2, 2, 0.5)
    found, _rate = drafter.propose()
    assert drafter.select(found, 2, 0.5) == found
    drafter.record_verified(2, 0, 5.0)
    assert drafter.select(found, 2, 0.5) == ()


def test_what_a_grammar_forces_needs_no_shadow() -> None:
    drafter = NgramDrafter(array("q", [1, 2, 3]), 4)
    found, _rate = drafter.propose_forced([7, 8])
    assert drafter.select(found, 2, 1.0) == (7, 8)
    drafter.record_verified(2, 0, 1.0)
    assert drafter.select(found, 2, 1.0) == ()


def test_counts_of_one_step() -> None:
    drafter = NgramDrafter(array("q", [1, 2, 3]), 3)
    assert drafter.count_step([5], 1) == (0, 0)
    drafter.record_verified(3, 2, 0.0)
    assert drafter.count_step([5, 6, 7], 3) == (3, 2)
    drafter.record_verified(3, 2, 0.0)
    assert drafter.count_step([5, 6, 7], 1) == (3, 1), "the rest is after the end of the answer"
    assert drafter.count_step([5], 1) == (0, 0)


def test_steps_that_take_longer_are_not_worth_it() -> None:
    costs = StepCosts()
    costs.record_step(1, 1, 0.01)
    costs.record_step(8, 8, 0.02)
    assert costs.best_count(1, 0.9, 4) > 0
    for _ in range(10):
        for rows in range(2, 6):
            costs.record_step(1, rows, 0.1)
    assert costs.best_count(1, 0.9, 4) == 0
    assert costs.best_count(1, 0.0, 4) == 0


def test_what_the_load_measured_is_assumed() -> None:
    large = StepCosts({1: 0.100, 2: 0.110, 4: 0.120, 8: 0.130, 16: 0.200})
    assert large.ratio(1, 4) == pytest.approx(1.2)
    assert large.ratio(2, 4) == pytest.approx(0.120 / 0.110)
    assert large.ratio(1, 6) == pytest.approx(1.25)
    assert large.best_count(1, 0.5, MAX_DRAFT_TOKENS) > StepCosts().best_count(1, 0.5, MAX_DRAFT_TOKENS) == 0


def test_what_a_busy_machine_measured_is_bounded() -> None:
    busy = StepCosts({1: 0.1, 2: 0.9, 4: 0.1, 8: 0.1, 16: 0.1})
    assert busy.ratio(1, 2) == pytest.approx(1 + CHANGED_FORM_COST + EXTRA_ROW_COST)
    assert StepCosts({1: 0.9, 2: 0.1, 4: 0.1, 8: 0.1, 16: 0.1}).ratio(1, 4) == 1


def test_one_slow_step_changes_little() -> None:
    costs = StepCosts()
    costs.record_step(1, 1, 0.01)
    costs.record_step(1, 4, 1.0)
    assert costs.best_count(1, 0.9, 3) > 0


def test_slow_ones_are_tried_again() -> None:
    costs = StepCosts()
    costs.record_step(1, 1, 0.01)
    for _ in range(20):
        costs.record_step(1, 4, 0.1)
    assert costs.ratio(1, 4) > 5
    assert any(costs.best_count(1, 0.9, 3) == 3 for _ in range(1000))


def test_the_plain_step_after_it_counts_too() -> None:
    costs = StepCosts()
    costs.record_step(2, 2, 0.01)
    before = costs.ratio(2, 3)
    for _ in range(20):
        costs.record_step(2, 3, 0.012)
        costs.record_step(2, 2, 0.014)
        costs.record_prefill()
        costs.record_step(2, 2, 0.9)  # no word on plain steps: it came after one with prompts
    assert before == pytest.approx(1 + CHANGED_FORM_COST + EXTRA_ROW_COST / 2**0.5)
    assert costs.ratio(2, 3) == pytest.approx(1.6, abs=0.01)


def test_others_pay_for_candidates() -> None:
    costs = StepCosts()
    alone, beside = (costs.best_count(n, 0.8, MAX_DRAFT_TOKENS) for n in (1, MAX_DRAFTED_STREAMS))
    assert alone > beside


class Machine:
    """Steps of one request take as long as those of SmolLM2 on an AMD EPYC, and other work disturbs them."""

    def __init__(self, random: Random) -> None:
        self.costs = StepCosts()
        self._random = random
        self._candidates = 0  # in the last step

    def step(self, candidates: int) -> float:
        seconds = 1.0
        if candidates:
            seconds = 1.55 + 0.085 * candidates + 0.6 * (self._candidates == 0)
        elif self._candidates:
            seconds = 1.1
        self._candidates = candidates
        self.costs.record_step(1, 1 + candidates, seconds * self._random.choice((1.0, 1.0, 1.0, 1.1, 1.6)))
        return seconds


def answer(random: Random, rate: float, tokens: int) -> tuple[list[int], list[int]]:
    """A prompt, and an answer that repeats it: what follows is the same with this rate."""
    prompt = [random.randrange(10**6) for _ in range(120)]
    text: list[int] = []
    at = 0
    while len(text) < tokens:
        text += [random.randrange(10**6)] if random.random() > rate else [prompt[at % 120]]
        at = at + 1 if text[-1] == prompt[at % 120] else random.randrange(100)
        if not at or text[-1] != prompt[(at - 1) % 120]:
            text += prompt[at : at + 3]  # the run that is looked for
            at += 3
    return prompt, text[:tokens]


def speed(machine: Machine, prompt: list[int], text: list[int]) -> float:
    """Answer; return the speed against plain steps."""
    ids, seconds, done = array("q", prompt), 0.0, 0
    drafter, costs = NgramDrafter(ids, MAX_DRAFT_TOKENS), machine.costs
    while done < len(text):
        found, rate = drafter.propose()
        count = costs.best_count(1, rate, len(found)) if found else 0
        drafted = drafter.select(found, count, costs.tokens(1, 1 + count)) if found else ()
        seconds += machine.step(len(drafted))
        right = 0
        while right < len(drafted) and text[done + right : done + right + 1] == [drafted[right]]:
            right += 1
        if drafted:
            drafter.record_verified(len(drafted), right, costs.tokens(1, 1 + len(drafted)))
        ids.extend(text[done : done + right + 1])
        done += right + 1
    return len(text) / seconds


@pytest.mark.parametrize(
    ("rate", "least"),
    [(0.0, 0.99), (0.3, 0.98), (0.5, 0.98), (0.6, 0.98), (0.7, 0.98), (0.8, 0.98), (0.9, 1.15), (0.98, 1.7)],
)
def test_drafts_do_not_lose(rate: float, least: float) -> None:
    random = Random(5)
    machine = Machine(random)
    speeds = [speed(machine, *answer(random, rate, 160)) for _ in range(150)]
    assert fmean(speeds) > least
    assert sorted(speeds)[7] > 0.93, "one in twenty may lose more"
