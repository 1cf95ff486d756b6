"""Steps that read prompts next to answers, and their duration. Seconds are handed in, without a clock."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from ovserve.kinds.text.worker.paged.prefill_budget import (
    MIN_PREFILL_TOKENS,
    TARGET_STEP_SECONDS,
    PrefillBudget,
)

MOST = 2048
PLAIN = 0.01  # seconds of a step without prompts

Machine = Callable[[int, int], float]  # seconds of a step, by tokens of prompts and tokens before these


def machine(token: float, deeper: float, plain: float = PLAIN) -> Machine:
    return lambda tokens, depth: plain + tokens * (token + deeper * (depth + tokens / 2))


SMOLLM2 = machine(0.00025, 0.00000011)  # as measured on an AMD EPYC with two cores
LARGE = machine(0.01, 0.0000004, plain=0.4)


def read(
    budget: PrefillBudget, seconds: Machine, tokens: int, num_decoding: int = 4, waiting: int = 1
) -> list[float]:
    """Read a prompt; return how long its steps took."""
    depth, steps = 0, []
    budget.record_step(num_decoding, 0, 0, seconds(0, 0))
    while depth < tokens:
        count = min(budget.tokens(num_decoding, waiting, depth, MOST), tokens - depth)
        steps.append(seconds(count, depth))
        budget.record_step(num_decoding, count, depth, steps[-1])
        depth += count
    return steps


def test_one_plain_step_that_was_held_up_does_not_unbind_a_prompt() -> None:
    budget = PrefillBudget()
    read(budget, SMOLLM2, 2000)
    budget.record_step(4, 0, 0, PLAIN)
    usual = budget.tokens(4, 1, 0, MOST)
    budget.record_step(4, 0, 0, 5.0)
    assert budget.tokens(4, 1, 0, MOST) <= usual < MOST


def test_with_nobody_answering_a_step_is_full() -> None:
    budget = PrefillBudget()
    assert budget.tokens(0, 1, 0, MOST) == MOST
    read(budget, SMOLLM2, 8000)
    assert budget.tokens(0, 1, 8000, MOST) == MOST


def test_before_anything_is_known_a_step_is_short() -> None:
    assert PrefillBudget().tokens(1, 1, 0, MOST) == MIN_PREFILL_TOKENS


@pytest.mark.parametrize("depth", [0, 4000])
def test_steps_stay_near_the_target_at_every_depth(depth: int) -> None:
    budget = PrefillBudget()
    budget.record_step(0, 1000, depth, SMOLLM2(1000, depth))  # the prompts of those that answer
    steps = read(budget, SMOLLM2, 30_000)
    assert max(steps) < 1.25 * TARGET_STEP_SECONDS
    assert min(steps[3:-1]) > 0.75 * TARGET_STEP_SECONDS


def test_a_machine_that_gets_slower_is_followed() -> None:
    budget = PrefillBudget()
    read(budget, SMOLLM2, 4000)
    steps = read(budget, machine(0.001, 0.00000044), 4000)
    assert max(steps) < 5 * TARGET_STEP_SECONDS
    assert max(steps[3:]) < 1.25 * TARGET_STEP_SECONDS


def test_where_plain_steps_are_slow_prompts_have_two_thirds_of_the_time() -> None:
    budget = PrefillBudget()
    steps = read(budget, LARGE, 4000)
    assert steps[-2] == pytest.approx(1.2, rel=0.1)


def test_the_time_of_more_answers_is_not_taken_for_that_of_prompts() -> None:
    budget = PrefillBudget()
    budget.record_step(0, 1000, 0, SMOLLM2(1000, 0))
    budget.record_step(4, 0, 0, 0.03)
    for _ in range(10):  # 60 answer now, in 0.13 s a step
        tokens = budget.tokens(60, 10, 0, MOST)
        budget.record_step(60, tokens, 0, 0.13 + SMOLLM2(tokens, 0) - PLAIN)
    assert tokens > 500


def test_a_prompt_always_goes_on() -> None:
    steps = read(PrefillBudget(), machine(1.0, 0.0), 8 * MIN_PREFILL_TOKENS)
    assert len(steps) == 8


def test_of_many_that_wait_more_is_read() -> None:
    budget = PrefillBudget()
    budget.record_step(0, 1000, 0, SMOLLM2(1000, 0))
    counts = [budget.tokens(4, waiting, 0, MOST) for waiting in (1, 4, 8, 16, 64)]
    assert counts[0] == counts[1]
    assert all(less < more for less, more in pairwise(counts[1:]))
    assert counts[-1] == MOST


def test_no_step_exceeds_the_most() -> None:
    budget = PrefillBudget()
    budget.record_step(0, 1000, 0, 0.001)
    assert budget.tokens(1, 1, 0, 256) == 256
    assert budget.tokens(1, 1, 0, 7) == 7
