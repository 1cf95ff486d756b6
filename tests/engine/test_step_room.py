"""Prompts enter a step whole where that costs nobody anything: the rule, on a model of the library's steps,
and what it gives on the real engine."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovserve.engine.backends.genai import GenAIEngine
from ovserve.engine.decoding.token_budget import LEAST_PART, TokenBudget
from ovserve.engine.protocol.messages import Accepted, Add, StepItem
from ovserve.engine.protocol.specs import TextSpec
from ovserve.engine.worker.admission_queue import AdmissionQueue
from ovserve.llm.request import Sampling

pytestmark = pytest.mark.long

SIZE = 128


def test_the_first_prompt_goes_in_whatever_its_length() -> None:
    room = TokenBudget(SIZE)
    assert room.can_schedule(10 * SIZE)


def test_a_prompt_that_would_be_cut_waits_for_the_next_step() -> None:
    room = TokenBudget(SIZE)
    room.admitted(1, 100, 1)
    assert room.can_schedule(28)
    assert not room.can_schedule(29)
    room.stepped()
    assert room.can_schedule(29)


def test_who_runs_takes_room() -> None:
    room = TokenBudget(SIZE)
    room.admitted(1, 100, 20)
    room.stepped()
    room.admitted(2, 90, 1)
    assert room.can_schedule(18)
    assert not room.can_schedule(19)
    room.ended(1)
    assert room.can_schedule(38)


def test_much_room_is_not_left_empty() -> None:
    room = TokenBudget(SIZE)
    room.admitted(1, int(SIZE * (1 - LEAST_PART)), 1)
    assert room.can_schedule(10 * SIZE)


def test_who_leaves_makes_room_at_once_and_once() -> None:
    room = TokenBudget(SIZE)
    room.admitted(1, SIZE, 1)
    assert not room.can_schedule(1)
    room.ended(1)
    room.ended(1)
    room.admitted(2, SIZE - 1, 1)
    assert room.can_schedule(1)
    assert not room.can_schedule(2)


@given(
    prompts=st.lists(st.integers(1, 3 * SIZE), min_size=1, max_size=60),
    answers=st.lists(st.integers(1, 12), min_size=60, max_size=60),
)
def test_nobody_waits_for_ever_and_no_step_runs_emptier_than_said(
    prompts: list[int], answers: list[int]
) -> None:
    """Against a library that computes a token of each who runs, and then prompts, in the order they came."""
    room, waiting = TokenBudget(SIZE), deque(enumerate(prompts))
    unread: dict[int, int] = {}
    running: dict[int, int] = {}
    steps = 0
    while waiting or unread or running:
        while waiting and room.can_schedule(waiting[0][1]):
            id_, tokens = waiting.popleft()
            unread[id_] = tokens
            room.admitted(id_, tokens, 1)
        assert unread or running, "the engine idles while somebody waits"
        left = SIZE - len(running)
        for id_ in [id_ for id_ in running if running[id_] == 1]:
            del running[id_]
            room.ended(id_)
        running = {id_: tokens - 1 for id_, tokens in running.items()}
        for id_ in list(unread):
            read = min(left, unread[id_])
            left -= read
            unread[id_] -= read
            if not unread[id_]:
                del unread[id_]
                running[id_] = answers[id_]
        assert not waiting or left < SIZE * LEAST_PART
        room.stepped()
        steps += 1
        assert steps <= sum(prompts) + sum(answers)


def ids(seed: int, tokens: int) -> tuple[int, ...]:
    return tuple(1000 + (seed * 7919 + i * 31) % 40_000 for i in range(tokens))


class Loop:
    """What the worker does between two steps, with the real engine in this process."""

    def __init__(self, model: str, size: int) -> None:
        self.engine = GenAIEngine(TextSpec(model, max_num_batched_tokens=size, enable_prefix_caching=True))
        self.turns = AdmissionQueue(self.engine)
        self.accepted: dict[int, Accepted] = {}

    def arrive(self, *prompts: tuple[int, ...]) -> None:
        sampling = Sampling(temperature=0.0, max_tokens=4, ignore_eos=True)
        first = len(self.accepted) + 1
        self._take([Add(first + i, prompt, False, sampling) for i, prompt in enumerate(prompts)])

    def step(self) -> set[int]:
        """Whose first token came."""
        self.engine.step()
        words = [word for word in self.engine.collect() if isinstance(word, StepItem)]
        self._take([])
        return {word.id for word in words}

    def _take(self, messages: list[Add]) -> None:
        self.turns.begin()
        for add in self.turns.take(messages):
            assert isinstance(add, Add)
            self.accepted[add.id] = self.engine.add(add, self.turns.encoded(add))


def test_the_real_engine_reads_whole_prompts_step_by_step(model: Path) -> None:
    loop = Loop(str(model), 128)
    loop.arrive(*(ids(n, 50) for n in range(5)))
    assert set(loop.accepted) == {1, 2}  # the third would be cut: 28 tokens of a step are left
    assert loop.step() == {1, 2}
    assert set(loop.accepted) == {1, 2, 3, 4}
    assert loop.step() == {1, 2, 3, 4}
    assert loop.step() == {1, 2, 3, 4, 5}


def test_a_twin_that_comes_in_the_same_moment_finds_the_prefix(model: Path) -> None:
    """Added together, each of them would be computed from its first token on."""
    loop = Loop(str(model), 128)
    loop.arrive(*((*ids(7, 96), n) for n in range(4)))
    while loop.engine.busy or loop.turns.waiting:
        loop.step()
    assert [loop.accepted[n].cached_tokens for n in (1, 2, 3, 4)] == [0, 96, 96, 96]
