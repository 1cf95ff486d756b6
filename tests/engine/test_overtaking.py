"""A short prompt does not wait behind a long one: the rule, and what it gives on the real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from ovserve.engine.backends.genai import GenAIEngine
from ovserve.engine.decoding.token_budget import OVERTAKING, SAVED_STEPS, TokenBudget
from ovserve.engine.protocol.messages import Abort, Add, StepItem
from ovserve.engine.protocol.specs import TextSpec
from ovserve.engine.worker.admission_queue import AdmissionQueue
from ovserve.llm.request import Sampling
from tests.engine import tiny
from tests.engine.real import EXACT

pytestmark = pytest.mark.long

SIZE = 64
LONG = 10 * SIZE + 30


def ids(seed: int, tokens: int) -> tuple[int, ...]:
    """Ids of characters, which both models have."""
    return tuple((seed * 17 + i * i * 31 + i) % 90 for i in range(tokens))


@pytest.fixture(scope="module")
def characters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is fast, and looks at the last character alone."""
    file = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    tiny.write(file, tiny.table())
    return file


def test_only_a_short_prompt_overtakes_and_only_long_ones() -> None:
    room = TokenBudget(SIZE)
    assert not room.overtakes(10)  # nobody to overtake
    room.admitted(1, SIZE, 1)
    assert not room.overtakes(10)
    room.admitted(2, LONG, 1)
    room.admitted(3, 20, 1)
    assert not room.overtakes(SIZE + 1)
    assert room.overtakes(SIZE)
    assert room.in_the_way() == [2, 3]
    room.overtaken(4, 10, 1)
    assert list(room._unread) == [1, 4, 2, 3]


def test_what_cannot_step_aside_is_not_overtaken() -> None:
    room = TokenBudget(SIZE)
    room.admitted(1, LONG, 1)
    room.admitted(2, LONG, 1, resumes=False)
    assert not room.overtakes(10)
    room.ended(2)
    assert room.overtakes(10)


def test_a_long_prompt_keeps_half_of_the_steps() -> None:
    room = TokenBudget(SIZE)
    room.admitted(0, LONG, 1)
    steps = 0
    while room._unread:
        while room.overtakes(SIZE):
            room.overtaken(steps := steps + 1000, SIZE, 0)
        room.stepped()
        steps = steps % 1000 + 1 if 0 in room._unread else steps
        if 0 not in room._unread:
            break
    assert steps % 1000 <= LONG / SIZE / (1 - OVERTAKING) + SAVED_STEPS


class Loop:
    """What the worker does between two steps, with the real engine in this process."""

    def __init__(self, model: Path, *, caching: bool = True) -> None:
        spec = TextSpec(
            str(model), max_num_batched_tokens=SIZE, enable_prefix_caching=caching, properties=EXACT
        )
        self.engine = GenAIEngine(spec)
        self.turns = AdmissionQueue(self.engine)
        self.texts: dict[int, str] = {}
        self.first: dict[int, int] = {}  # step of the first token
        self.steps = 0

    def take(self, *messages: Add | Abort) -> None:
        self.turns.begin()
        for message in self.turns.take(messages):
            if isinstance(message, Add):
                self.engine.add(message, self.turns.encoded(message))
            else:
                assert isinstance(message, Abort)
                self.engine.abort(message.id)

    def arrive(self, id_: int, prompt: tuple[int, ...]) -> None:
        self.take(Add(id_, prompt, False, Sampling(temperature=0.0, max_tokens=8, ignore_eos=True)))

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.engine.step()
            self.steps += 1
            for word in self.engine.collect():
                assert isinstance(word, StepItem), word
                self.texts[word.id] = self.texts.get(word.id, "") + word.text
                self.first.setdefault(word.id, self.steps)
            self.take()

    def run(self) -> None:
        while self.engine.busy or self.turns.waiting:
            self.step()


def test_a_short_prompt_has_its_first_token_in_the_next_step(characters: Path) -> None:
    loop = Loop(characters)
    loop.arrive(1, ids(1, LONG))
    loop.arrive(4, ids(4, LONG))  # waits for the first
    loop.step(3)
    loop.arrive(2, ids(2, 40))
    loop.step(4)
    loop.arrive(3, ids(3, 40))
    loop.run()
    assert (loop.first[2], loop.first[3]) == (4, 8)
    assert loop.first[1] <= LONG // SIZE + 4  # it lost what the short ones took, and no more
    assert loop.engine._accounts.prefix is not None, "the account of the prefix cache still agrees"


@pytest.mark.timeout(300)
def test_who_stepped_aside_answers_as_if_alone(model: Path) -> None:
    """With a model that looks at all of its prompt."""
    alone, loop = Loop(model), Loop(model)
    for id_, tokens in ((1, LONG), (2, 40), (3, 20)):
        alone.arrive(id_, ids(id_, tokens))
        alone.run()
    loop.arrive(1, ids(1, LONG))
    loop.step(2)
    loop.arrive(2, ids(2, 40))
    loop.step(2)
    loop.arrive(3, ids(3, 20))
    loop.run()
    assert (loop.first[2], loop.first[3]) == (3, 5)
    # Their beginnings: beside others the sums are rounded otherwise, and these prompts of no words have near ties.
    assert {id_: text[:3] for id_, text in loop.texts.items()} == {
        id_: text[:3] for id_, text in alone.texts.items()
    }


def test_without_a_prefix_cache_all_wait_for_their_turn(characters: Path) -> None:
    loop = Loop(characters, caching=False)
    loop.arrive(1, ids(1, 4 * SIZE))
    loop.step()
    loop.arrive(2, ids(2, 40))
    loop.run()
    assert loop.first[1] <= loop.first[2] <= 6


def test_many_short_prompts_do_not_stop_a_long_one(characters: Path) -> None:
    loop = Loop(characters)
    loop.arrive(1, ids(1, LONG))
    for number in range(10, 80):
        if 1 in loop.first:
            break
        loop.arrive(number, ids(number, SIZE - 10))
        loop.step()
    assert loop.first[1] <= 3 * LONG / SIZE + SAVED_STEPS
    loop.run()
    assert len(loop.texts) == len(loop.first)


def test_who_leaves_while_aside_is_gone(characters: Path) -> None:
    loop = Loop(characters)
    loop.arrive(1, ids(1, LONG))
    loop.step(2)
    loop.arrive(2, ids(2, 40))
    assert loop.engine._overtaking.aside == [1]
    loop.take(Abort(1))
    loop.run()
    assert set(loop.texts) == {2}
    loop.arrive(1, ids(1, LONG))
    loop.run()
    assert set(loop.texts) == {1, 2}
