"""The record of recent prompts: what they share, and how much of them is kept."""

from __future__ import annotations

import random
import sys

import pytest

from ovserve.engine.client.prefixes import (
    LEAST_TOKENS,
    MOST_BYTES,
    MOST_PREFIXES,
    MOST_PROMPTS,
    PromptRecord,
    SharedPrefix,
    common,
)
from ovserve.llm.request import Prompt

RULES = "You answer in one word. " * 40
TABLE = "Rome is in Italy. " * 40


def record(*prompts: Prompt, special: bool = False) -> PromptRecord:
    made = PromptRecord()
    for prompt in prompts:
        made.add(prompt, special=special)
    return made


async def test_what_is_shared_most_and_is_longest_comes_first() -> None:
    made = record(
        *(RULES + str(i) for i in range(1, 4)),
        TABLE + "ab" * 130 + "1",
        TABLE + "ab" * 130 + "2",
        TABLE + "other",
        "seen once " * 100,
    )
    shared = await made.shared()
    assert [(p.prompt, p.uses) for p in shared] == [
        (RULES, 3),
        (TABLE, 3),
        (TABLE + "ab" * 130, 2),  # of which 260 characters count, because the rest is there already
    ]


async def test_texts_and_ids_and_prompts_with_added_tokens_share_nothing() -> None:
    ids = tuple(range(500))
    made = record(RULES + "1", ids)
    made.add(RULES + "2", special=True)
    assert await made.shared() == []
    made.add((*ids[:300], 9, 9), special=False)
    assert await made.shared() == [SharedPrefix(ids[:300], False, 2)]


@pytest.mark.parametrize("length", [0, 1, 4 * LEAST_TOKENS - 1])
async def test_a_short_beginning_is_not_worth_a_request(length: int) -> None:
    assert not await record("x" * length + "a", "x" * length + "b").shared()


async def test_what_only_one_prompt_had_is_forgotten_at_rest() -> None:
    made = record(RULES + "my secret", TABLE + "a secret", RULES + "another secret", "the secret " * 99)
    before = await made.shared()
    await made.drop_unshared()
    assert {one.prompt for one in made._kept} == {RULES}
    assert await made.shared() == before == [SharedPrefix(RULES, False, 2)]
    made.add(RULES + "x", special=False)
    assert (await made.shared())[0].uses == 3


async def test_the_memory_is_bounded_whatever_prompts_are() -> None:
    chance = random.Random(3)
    made = PromptRecord()
    for i in range(600):
        letter = chance.choice("aä語😀\ud800")
        made.add(letter * chance.choice((0, 10, 5000, 1_000_000)) + str(i), special=False)
        if i % 50 == 0:
            made.add(tuple(range(50_000)), special=False)
        held = sum(
            sys.getsizeof(k.prompt) if isinstance(k.prompt, str) else 36 * len(k.prompt) for k in made._kept
        )
        assert made.bytes == held <= MOST_BYTES
        assert len(made) <= MOST_PROMPTS
    assert len(await made.shared()) <= MOST_PREFIXES
    await made.drop_unshared()
    assert made.bytes <= MOST_BYTES


def test_a_prefix_is_cached_by_the_prompts_of_this_process() -> None:
    made = record(RULES + "1", RULES + "2")
    prefix = SharedPrefix(RULES, False, 2)
    assert made.cached(prefix)
    made.renew()
    assert not made.cached(prefix)
    made.add(RULES + "3", special=True)
    assert not made.cached(prefix)
    made.add(RULES + "3", special=False)
    assert made.cached(prefix)


def test_the_common_beginning() -> None:
    chance = random.Random(5)
    for _ in range(300):
        one, other = ("".join(chance.choices("ab", [9, 1], k=chance.randrange(30))) for _ in "xy")
        plain = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
        assert common(one, other) == (min(len(one), len(other)) if plain is None else plain)
