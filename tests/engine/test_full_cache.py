"""A bounded cache that is full: the library drops requests that fit alone, and the engine has them go on.

The model says after each character the next one, so every answer is known.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from ovserve.engine.backends.genai import GenAIEngine
from ovserve.engine.protocol.messages import Failed
from ovserve.engine.protocol.specs import TextSpec
from tests.engine import real, tiny

BLOCKS = 8  # of 32 tokens
REQUESTS = 40


def answer(prompt: str, tokens: int) -> str:
    at = tiny.ENDLESS.index(prompt[-1]) + 1
    return (tiny.ENDLESS * (tokens // len(tiny.ENDLESS) + 2))[at : at + tokens]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    tiny.write(path, tiny.table())
    return str(path)


Prompt = TypeVar("Prompt", str, tuple[int, ...])


def crowd(
    engine: GenAIEngine, seed: int, prompt_of: Callable[[str], Prompt]
) -> list[tuple[Prompt, int | None, str]]:
    """Have requests come and leave, which is what makes the library drop what it has. Return the prompts, the
    most tokens and the texts of those that stayed."""
    chance = random.Random(seed)
    shared = "".join(chance.choices("abcdefghij", k=300))
    asked: dict[int, tuple[Prompt, int | None]] = {}
    texts: dict[int, str] = {}
    running: set[int] = set()
    number = 0
    for _ in range(5000):
        if number < REQUESTS and chance.random() < 0.3:
            number += 1
            size = chance.choice([5, 30, 60, 120, 200, 250])
            prompt = prompt_of(
                shared[: size // 2] + "".join(chance.choices("abcdefghij", k=size - size // 2))
            )
            accepted = real.add(
                engine, number, prompt, max_tokens=chance.choice([1, 20, 100, 300]), ignore_eos=True
            )
            asked[number], texts[number] = (prompt, accepted.max_tokens), ""
            running.add(number)
        if running and chance.random() < 0.05:
            engine.abort(gone := chance.choice(sorted(running)))
            running.discard(gone)
            del asked[gone]
        if not engine.busy and number == REQUESTS:
            break
        engine.step()
        for word in engine.collect():
            assert not isinstance(word, Failed), word
            texts[word.id] += word.text
            if word.last:
                running.discard(word.id)
    assert not running
    assert len(asked) > REQUESTS // 5
    return [(*asked[number], texts[number]) for number in asked]


@pytest.mark.parametrize("prompt_lookup", [False, True])
@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_what_fits_alone_is_answered_whole(
    file: str, seed: int, prefix_caching: bool, prompt_lookup: bool
) -> None:
    spec = TextSpec(
        file,
        num_kv_blocks=BLOCKS,
        enable_prefix_caching=prefix_caching,
        max_num_batched_tokens=32,
        prompt_lookup=prompt_lookup,
    )
    engine = GenAIEngine(spec)
    assert engine.facts.max_length == BLOCKS * 32
    for prompt, most, text in crowd(engine, seed, str):
        assert most is not None
        assert text == answer(prompt, most)
