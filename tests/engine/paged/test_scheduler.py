"""The scheduler without a model: whose tokens are in a step next to answers, and who is let in."""

from __future__ import annotations

from itertools import count

import pytest

from ovserve.kinds.text.worker.decoding import Sequence
from ovserve.kinds.text.worker.paged.blocks import BlockPool
from ovserve.kinds.text.worker.paged.prefill_budget import TARGET_STEP_SECONDS, PrefillBudget
from ovserve.kinds.text.worker.paged.running import Running
from ovserve.kinds.text.worker.paged.sampler import Choice
from ovserve.kinds.text.worker.paged.scheduler import SHORT_STEP_TOKENS, Scheduler
from ovserve.llm.request import Sampling
from tests.engine.paged.test_blocks import no_copy

MOST = 1024
ROOM = 200  # tokens of prompts in a step next to answers


class Steps:
    """Requests and steps, whose costs are known: ROOM tokens take the TARGET_STEP_SECONDS."""

    def __init__(self, sequences: int = 64, blocks: int = 2000, *, splits: bool = True) -> None:
        self.scheduler = Scheduler(
            BlockPool(blocks, caches=False, copy=no_copy), MOST, sequences, PrefillBudget(), splits=splits
        )
        self.scheduler.budget.record_step(0, ROOM, 0, TARGET_STEP_SECONDS)
        self.scheduler.budget.record_step(1, 0, 0, 0.0)
        self._ids = count(1)

    def add(self, tokens: int, *, answers: bool = False, batch: bool = False) -> Running:
        id_ = next(self._ids)
        sampling = Sampling(temperature=0.0)
        ids = [id_] * tokens
        sequence = Sequence(None, id_, sampling, tokens, frozenset(), frozenset())
        running = Running(sequence, ids, Choice(sampling, ids, frozenset(), None), 0)
        running.batch = batch
        self.scheduler.add(running)
        while answers and running.num_new_tokens > 1:
            self.step()
        return running

    def step(self) -> dict[int, int]:
        """Return the tokens of each request."""
        scheduled = self.scheduler.schedule(lambda running, num_decoding: ()).items
        for item in scheduled:
            running, read = (
                item.running,
                item.running.num_computed_tokens + item.tokens == len(item.running.ids),
            )
            self.scheduler.record_computed(running, item.tokens)
            if read:
                running.append(1, None)
        return {item.running.id: item.tokens for item in scheduled}


def test_whole_prompts_are_not_split() -> None:
    steps = Steps(splits=False)
    steps.add(10, answers=True)
    steps.add(MOST)
    steps.add(90)
    steps.add(30)
    assert steps.step() == {1: 1, 2: MOST}, "next to answers too, which leave no step of that length"
    assert not steps.scheduler.can_schedule(MOST - 100)
    assert steps.scheduler.can_schedule(MOST - 120)
    assert steps.step() == {1: 1, 2: 1, 3: 90, 4: 30}


def test_a_preempted_answer_may_be_longer_than_a_step() -> None:
    steps = Steps(splits=False)
    older = steps.add(10, answers=True)
    running = steps.add(MOST, answers=True)
    for _ in range(40):
        steps.step()
    steps.scheduler._preempt_for(older, 1, {})
    assert (running.num_computed_tokens, running.num_new_tokens) == (0, MOST + 41)
    assert steps.step()[running.id] == MOST
    assert steps.step()[running.id] == 41
    assert running.num_new_tokens == 1


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
    scheduled = steps.step()
    assert scheduled == {1: 1, 2: 1, 3: 1, 4: 1, 5: ROOM}


def test_those_that_will_come_count_as_waiting() -> None:
    steps = Steps()
    steps.add(10, answers=True)
    steps.add(5000)
    steps.scheduler.num_arriving = 3
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
    assert (first.num_new_tokens, second.num_computed_tokens) == (1, 0)
    steps.scheduler.num_arriving = 3
    assert steps.scheduler._prefill_budget(1, 0, MOST) == 4 * ROOM, "four wait, one answers"


def test_no_line_of_a_batch_is_in_a_step_of_another_request() -> None:
    steps = Steps()
    answering, reading = steps.add(10, answers=True, batch=True), steps.add(3000, batch=True)
    assert steps.step().keys() == {answering.id, reading.id}
    live = steps.add(500)
    assert steps.step() == {live.id: 500}, "its prompt has the whole step"
    for _ in range(20):
        assert steps.step() == {live.id: 1}
    second = steps.add(100)
    assert steps.scheduler.can_schedule(50)
    assert not steps.scheduler.can_schedule(50, batch=True)
    assert steps.step().keys() == {live.id, second.id}
    steps.scheduler.remove(live.id)
    steps.scheduler.remove(second.id)
    assert steps.step().keys() == {answering.id, reading.id}, "they go on where they were"


def test_a_prompt_does_not_wait_for_prompts_of_batches() -> None:
    steps = Steps()
    steps.add(900, batch=True)
    assert steps.scheduler.can_schedule(MOST)
    assert not steps.scheduler.can_schedule(MOST, batch=True)


def test_a_request_takes_the_blocks_and_the_places_of_lines_of_batches() -> None:
    steps = Steps(sequences=2, blocks=13)
    lines = [steps.add(100, answers=True, batch=True) for _ in range(2)]
    live = steps.add(200)
    assert steps.step() == {live.id: 200}
    assert not lines[1].block_table, "the one that started last has scheduled_tokens its blocks back"
    assert lines[0].block_table
    for _ in range(100):
        assert steps.step() == {live.id: 1}
    assert not lines[0].block_table, "the answer has grown into those of the other"
    steps.scheduler.remove(live.id)
    for _ in range(3):
        steps.step()
    assert all(line.block_table for line in lines), "both are computed again"


def test_steps_of_batches_are_short_after_another_request() -> None:
    steps = Steps()
    lines = [steps.add(10, answers=True, batch=True) for _ in range(20)]
    assert len(steps.step()) == len(lines)
    steps.scheduler.short_steps = True
    scheduled = [steps.step() for _ in range(5)]
    assert {sum(step.values()) for step in scheduled} == {SHORT_STEP_TOKENS}
    assert {id_ for step in scheduled for id_ in step} == {line.id for line in lines}, "all take scheduled"
    live = steps.add(500)
    assert steps.step() == {live.id: 500}
