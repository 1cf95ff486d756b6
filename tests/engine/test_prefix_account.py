"""What the account says of a prompt against what the real engine computes.

The engine tells it by a side door: an echoed prompt has log-probabilities for what was computed of it, and
none for what the prefix cache had, so the first None are one more than the tokens restored. With fewer tokens
in a step than a prompt has, and a cache too small for all, the account has to be right about every block.
"""

from __future__ import annotations

import random
from array import array
from pathlib import Path
from typing import Any

import pytest

from ovserve.engine.backends.genai import GenAIEngine
from ovserve.engine.backends.genai.accounts import prefix_account
from ovserve.engine.prefix_cache.model import Gain, PrefixCacheModel
from ovserve.engine.protocol.messages import Add, StepItem
from ovserve.engine.protocol.specs import CacheEviction, DraftSpec, TextSpec
from ovserve.llm.request import Sampling

pytestmark = pytest.mark.long

Ids = tuple[int, ...]


@pytest.fixture(autouse=True)
def side_door(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such prompts go to the library as any others, beside others and with what the cache has of them."""
    monkeypatch.setattr("ovserve.engine.backends.genai.continuous.comes_first", lambda _: False)


class Pair:
    """The engine with its account; every answer is compared."""

    def __init__(self, model: str, **options: Any) -> None:
        self.engine = GenAIEngine(TextSpec(model, enable_prefix_caching=True, **options))
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

    def step(self, but: int = 0) -> list[StepItem]:
        """`but`: a request that was not added here."""
        self.engine.step()
        words = [word for word in self.engine.collect() if isinstance(word, StepItem) and word.id != but]
        for word in words:
            self.nones[word.id] += [token.logprob is None for token in word.logprobs or ()]
        account = self.engine._accounts.prefix
        assert account is not None, "it went wrong"
        self.spoken |= {id_: tuple(held.ids) for id_, held in account._held.items()}
        for id_, held in account._held.items():
            if not held.decoding and held.processed < self.told.get(id_, 0):
                del self.told[id_]  # it had to give back what it had found
        for id_ in [id_ for id_ in self.told if self.nones[id_]]:
            of_prompt = self.nones[id_][: len(self.prompts[id_])]
            assert self.told.pop(id_) == sum(of_prompt) - 1, f"request {id_} of {len(of_prompt)} tokens"
            self.compared += 1
        return words

    def run(self) -> list[StepItem]:
        words = []
        while self.engine.busy:
            words += self.step()
        return words

    def ask(self, prompt: Ids, max_tokens: int = 1) -> int:
        cached = self.add(prompt, max_tokens)
        self.run()
        return cached


@pytest.fixture(scope="module")
def pair(ir_directory: Path) -> Pair:
    return Pair(str(ir_directory), max_num_batched_tokens=32)


@pytest.fixture(scope="module")
def small(ir_directory: Path) -> Pair:
    return Pair(str(ir_directory), max_num_batched_tokens=48, num_kv_blocks=10)


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


def test_of_two_blocks_that_fit_the_shorter_is_taken(pair: Pair) -> None:
    prompt = ids(60, seed=15)
    pair.add(prompt[:40])
    pair.add(prompt[:50])
    pair.run()
    assert pair.ask(prompt) == 40


def test_a_block_of_one_token_is_left_for_longer_prompts(pair: Pair) -> None:
    prompt = ids(65, seed=14)
    pair.ask(prompt)
    assert pair.ask(prompt, max_tokens=5) == 64
    assert pair.ask((*prompt, 77, 78)) == 65


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


def test_an_echoed_prompt_alone(pair: Pair) -> None:
    """In several steps, and again from the cache: the library itself then gives pieces, and scores from
    memory that is not its own."""
    prompt = ids(100, seed=12)
    scores = []
    for cached in (0, 99):
        id_ = len(pair.prompts) + 1
        assert pair.add(prompt, max_tokens=0) == cached
        words = pair.run()
        [end] = [word for word in words if word.finish_reason]
        assert (end.id, end.finish_reason, sum(word.tokens for word in words)) == (id_, "length", 0)
        scores.append([token.logprob for word in words for token in word.logprobs or ()])
    assert [len(one) for one in scores] == [100, 100]
    assert scores[1] == [None] * 100
    assert None not in scores[0][1:]
    assert len(set(scores[0])) > 90


def test_beams_between_others(pair: Pair) -> None:
    prompt = ids(100, seed=13)
    sampling = Sampling(max_tokens=8, beams=3, n=2, ignore_eos=True)
    pair.engine.add(Add(1_000_000, prompt, False, sampling))
    other = pair.add(prompt[:60])
    while pair.engine.busy:
        pair.step(but=1_000_000)
    assert other == 0
    assert pair.ask(prompt) == 96


@pytest.mark.parametrize(
    "options",
    [
        {"enable_prefix_caching": False},
        {"prompt_lookup": True},
        {"draft": DraftSpec("/draft")},
        {"device": "GPU"},
        {"cache_eviction": CacheEviction(32, 32, 128)},
        {"cache_interval_multiplier": 2},
    ],
)
def test_where_nothing_is_told(options: dict[str, Any]) -> None:
    assert prefix_account(TextSpec("m", enable_prefix_caching=True), None) is not None
    assert prefix_account(TextSpec("m", **{"enable_prefix_caching": True, **options}), None) is None


def bare(**options: Any) -> PrefixCacheModel:
    return PrefixCacheModel(**{"block": 32, "blocks": 0, "batch": 64, **options})


def packed(prompt: Ids) -> bytes:
    return array("q", prompt).tobytes()


@pytest.mark.parametrize("gains", [[Gain(1, [5], False)], []])
def test_a_step_that_cannot_be_is_noticed(gains: list[Gain]) -> None:
    account = bare()
    account.add(1, packed(ids(100, seed=1)), 5)
    assert account.step([])  # 64 tokens of the prompt
    assert account.step(gains) is bool(gains)
    if not gains:
        return
    assert not account.step([])


def test_it_takes_no_more_memory_than_the_cache_has_blocks() -> None:
    account = bare(blocks=20)
    for i in range(2000):
        account.add(i, packed(ids(50 + i % 7, seed=i % 40)), 1)
        assert account.step([Gain(i, [5], True)])
    pool = account._pool
    assert len(pool.named) <= 20
    assert len(pool._oldest) <= 200
    assert sum(map(len, pool._partial.values())) <= 20
    assert not account._held


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
])  # fmt: skip
def test_many_at_once_under_other_options(ir_directory: Path, options: dict[str, Any]) -> None:
    pair = Pair(str(ir_directory), **options)
    for seed in range(3):
        walk(pair, seed, 150)
    assert pair.compared > 60
