"""What the account says of a prompt against what the real engine computes.

The engine tells it by a side door: an echoed prompt has log-probabilities for what was computed of it, and
none for what the prefix cache had, so the first None are one more than the tokens restored. With fewer tokens
in a step than a prompt has, and a cache too small for all, the account has to be right about every block.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from ovserve.engine.genai import GenAIEngine
from ovserve.engine.messages import Add, EngineSpec, StepItem
from ovserve.llm.request import Sampling

Ids = tuple[int, ...]


class Pair:
    """The engine with its account; every answer is compared."""

    def __init__(self, model: str, **options: Any) -> None:
        self.engine = GenAIEngine(EngineSpec(model, enable_prefix_caching=True, **options))
        self.told: dict[int, int] = {}
        self.prompts: dict[int, Ids] = {}
        self.nones: dict[int, list[bool]] = {}
        self.spoken: dict[int, Ids] = {}  # prompts with answers, but for the last token
        self.compared = 0

    def add(self, prompt: Ids, max_tokens: int = 1) -> int:
        id_ = len(self.prompts) + 1
        sampling = Sampling(
            temperature=0.0,
            max_tokens=max_tokens,
            echo=True,
            logprobs=True,
            ignore_eos=True,
            skip_special_tokens=False,
        )
        cached = self.engine.add(Add(id_, prompt, False, sampling)).cached_tokens
        assert cached is not None
        self.told[id_], self.prompts[id_], self.nones[id_] = cached, prompt, []
        return cached

    def step(self) -> None:
        self.engine.step()
        for word in self.engine.collect():
            assert isinstance(word, StepItem)
            self.nones[word.id] += [token.logprob is None for token in word.logprobs or ()]
        account = self.engine._prefix
        assert account is not None, "it went wrong"
        self.spoken |= {id_: tuple(held.ids) for id_, held in account._held.items()}
        for id_ in [id_ for id_ in self.told if self.nones[id_]]:
            of_prompt = self.nones[id_][: len(self.prompts[id_])]
            assert self.told.pop(id_) == sum(of_prompt) - 1, f"request {id_} of {len(of_prompt)} tokens"
            self.compared += 1

    def run(self) -> None:
        while self.engine.busy:
            self.step()

    def ask(self, prompt: Ids, max_tokens: int = 1) -> int:
        cached = self.add(prompt, max_tokens)
        self.run()
        return cached


@pytest.fixture(scope="module")
def pair(model_path: str) -> Pair:
    return Pair(model_path, max_num_batched_tokens=32)


@pytest.fixture(scope="module")
def small(model_path: str) -> Pair:
    return Pair(model_path, max_num_batched_tokens=48, num_kv_blocks=10)


def ids(count: int, seed: int) -> Ids:
    return tuple(random.Random(seed).choices(range(100, 40_000), k=count))


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 64, 70])
def test_the_same_prompt_is_computed_but_for_its_last_token(pair: Pair, count: int) -> None:
    prompt = ids(count, seed=count)
    assert pair.ask(prompt) == 0
    assert pair.ask(prompt) == count - 1
    assert pair.compared >= 2


@pytest.mark.parametrize(("shared", "cached"), [(20, 0), (32, 32), (50, 32), (64, 64), (90, 64)])
def test_whole_blocks_of_a_prefix_are_found(pair: Pair, shared: int, cached: int) -> None:
    first = ids(100, seed=1000 + shared)
    assert pair.ask(first) == 0
    assert pair.ask(first[:shared] + ids(30, seed=2000 + shared)) == cached


def test_a_block_that_is_not_full_is_found_by_who_begins_with_all_of_it(pair: Pair) -> None:
    first = ids(40, seed=3)
    pair.ask(first)
    assert pair.ask(first + ids(40, seed=4)) == 40


def test_the_next_turn_has_the_answer_too(pair: Pair) -> None:
    prompt = ids(40, seed=5)
    pair.ask(prompt, max_tokens=41)
    said = pair.spoken[len(pair.prompts)]
    assert len(said) == 80  # the token generated last is not in the cache
    assert pair.ask((*said, *ids(30, seed=6))) == 80


def test_two_at_once(pair: Pair) -> None:
    prompt = ids(100, seed=7)
    assert pair.add(prompt, 5) == 0
    assert pair.add(prompt, 5) == 0  # nothing of the first is there yet
    pair.step()
    assert pair.add(prompt, 5) == 32  # a step's worth of the first
    pair.run()
    assert pair.ask(prompt) == 96  # of those that generated, whole blocks


def test_what_was_computed_for_a_request_that_left_is_found(pair: Pair) -> None:
    prompt = ids(100, seed=8)
    pair.add(prompt, 20)
    pair.told.clear()
    pair.step()
    pair.step()
    pair.engine.abort(len(pair.prompts))
    pair.run()
    assert pair.ask(prompt) == 64


def test_what_had_to_make_room_is_not_found(small: Pair) -> None:
    first, second = ids(150, seed=9), ids(250, seed=10)
    small.ask(first)
    assert small.ask(first) == 149
    small.ask(second)
    assert small.ask(first) < 149
    assert small.compared >= 4


def test_without_prefix_caching_nothing_is_told(model_path: str) -> None:
    engine = GenAIEngine(EngineSpec(model_path))
    assert engine.add(Add(1, ids(10, seed=11), False, Sampling(max_tokens=1))).cached_tokens is None
    while engine.busy:
        engine.step()
        engine.collect()


def walk(pair: Pair, seed: int, steps: int) -> None:
    """Requests that begin alike come, answer at the same time, and leave."""
    chance = random.Random(seed)
    bases = [ids(150, seed=100 * seed + i) for i in range(3)]
    for _ in range(steps):
        live = pair.engine.live()
        lot = chance.random()
        if lot < 0.3 and len(live) < 4:
            spoken = chance.choice([*pair.spoken.values(), *bases])
            cut = chance.choice([32, 33, 64, chance.randrange(1, 150), 150])
            more = chance.choice([0, 0, 1, 20])
            prompt = (spoken[:cut] + chance.choice(bases)[:more])[:150]
            pair.add(prompt, chance.choice([1, 1, 2, 5, 40]))
        elif lot < 0.34 and live:
            gone = chance.choice(live)
            pair.told.pop(gone, None)
            pair.engine.abort(gone)
        elif pair.engine.busy:
            pair.step()
    pair.run()


@pytest.mark.parametrize("seed", [1, 2])
def test_many_at_once(small: Pair, seed: int) -> None:
    before = small.compared
    walk(small, seed, 80)
    assert small.compared > before + 5


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    {"max_num_batched_tokens": 32},
    {"max_num_batched_tokens": 256, "num_kv_blocks": 40},
    {"max_num_batched_tokens": 256, "num_kv_blocks": 14, "max_num_seqs": 8, "dynamic_split_fuse": False},
])  # fmt: skip
def test_many_at_once_under_other_options(model_path: str, options: dict[str, Any]) -> None:
    pair = Pair(model_path, **options)
    for seed in range(3):
        walk(pair, seed, 150)
    assert pair.compared > 60
