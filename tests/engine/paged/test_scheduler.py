"""The scheduler without a model: whose tokens are in a step next to answers, and who is let in."""

from __future__ import annotations

from itertools import count

import pytest

from ovserve.engine.backends.paged.blocks import BlockPool
from ovserve.engine.backends.paged.budget import TARGET, PromptBudget
from ovserve.engine.backends.paged.running import Running
from ovserve.engine.backends.paged.sampler import Choice
from ovserve.engine.backends.paged.scheduler import Scheduler
from ovserve.engine.decoding.sequence import Sequence
from ovserve.llm.request import Sampling

MOST = 1024
ROOM = 200  # tokens of prompts in a step next to answers


class Steps:
    """Requests and steps, whose costs are known: ROOM tokens take the TARGET."""

    def __init__(self, sequences: int = 64, blocks: int = 2000) -> None:
        self.scheduler = Scheduler(BlockPool(blocks, caches=False), MOST, sequences, PromptBudget())
        self.scheduler.budget.measured(0, ROOM, 0, TARGET)
        self.scheduler.budget.measured(1, 0, 0, 0.0)
        self._ids = count(1)

    def add(self, tokens: int, *, answers: bool = False) -> Running:
        id_ = next(self._ids)
        sampling = Sampling(temperature=0.0)
        ids = [id_] * tokens
        sequence = Sequence(None, id_, sampling, tokens, frozenset(), frozenset())
        running = Running(sequence, ids, Choice(sampling, ids, frozenset(), None), 0)
        self.scheduler.add(running)
        while answers and running.unread > 1:
            self.step()
        return running

    def step(self) -> dict[int, int]:
        """Return the tokens of each request."""
        turns = self.scheduler.plan(lambda running: ())
        for turn in turns:
            running, read = turn.running, turn.running.computed + turn.tokens == len(turn.running.ids)
            self.scheduler.computed(running, turn.tokens)
            if read:
                running.gain(1, None)
        return {turn.running.id: turn.tokens for turn in turns}


def test_alone_prompts_fill_a_step() -> None:
    steps = Steps()
    steps.add(5000)
    assert steps.step() == {1: MOST}


def test_next_to_answers_they_have_their_room() -> None:
    steps = Steps()
    steps.add(10, answers=True)
    steps.add(5000)
    assert steps.step() == {1: 1, 2: ROOM}
    assert steps.step()[2] < ROOM, "deeper tokens take longer"


def test_short_prompts_pass_long_ones_in_short_steps_too() -> None:
    steps = Steps()
    steps.add(10, answers=True)
    steps.add(5000)
    steps.add(90)
    assert steps.scheduler.budget.tokens(1, 2, 0, MOST) == 2 * ROOM, "two wait, one answers"
    assert steps.step() == {1: 1, 2: 2 * ROOM - 90, 3: 90}


def test_prompts_of_one_length_are_read_in_their_order() -> None:
    steps = Steps()
    for _ in range(4):
        steps.add(10, answers=True)
    for _ in range(4):
        steps.add(ROOM + 50)
    turns = steps.step()
    assert turns == {1: 1, 2: 1, 3: 1, 4: 1, 5: ROOM}


def test_those_that_will_come_count_as_waiting() -> None:
    steps = Steps()
    steps.add(10, answers=True)
    steps.add(5000)
    steps.scheduler.coming = 3
    assert steps.step()[2] == 4 * ROOM


@pytest.mark.parametrize("answering", [1, 8])
def test_who_is_let_in_is_read_in_the_next_step(answering: int) -> None:
    steps = Steps()
    for _ in range(answering):
        steps.add(10, answers=True)
    assert steps.scheduler.can_schedule(6000)
    let_in = []
    while steps.scheduler.can_schedule(120):
        let_in.append(steps.add(120).id)
    assert len(let_in) > 1
    assert set(let_in) <= steps.step().keys()


def test_short_ones_are_let_in_next_to_a_long_one() -> None:
    steps = Steps()
    for _ in range(4):
        steps.add(10, answers=True)
    steps.add(5000)
    assert steps.scheduler.can_schedule(90)
    assert steps.scheduler.can_schedule(5000), "no short one behind it should wait for this one"
    steps.add(90)
    assert not steps.scheduler.can_schedule(90)
    assert steps.step()[6] == 90


def test_a_stopped_request_counts_as_waiting() -> None:
    steps = Steps(blocks=10)
    first, second = (steps.add(100, answers=True) for _ in range(2))
    while second.id in steps.scheduler._started:
        steps.step()
    assert (first.unread, second.computed) == (1, 0)
    steps.scheduler.coming = 3
    assert steps.scheduler._room(MOST) == 4 * ROOM, "four wait, one answers"
