"""Prompts that are cancelled half read do not spoil the prefix cache for those that come after them, and the
log-probabilities of prompts are those of the prompt."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ovserve.engine.protocol.specs import TextSpec
from ovserve.errors import InvalidArgument, Unavailable
from ovserve.kinds.text.worker.genai import GenAIEngine
from tests.engine.real import EXACT, FRANCE, LIST, STORY, Queued, Result, add, generate, run

pytestmark = pytest.mark.long

STEP = 72  # tokens: no whole number of blocks
LENGTH = 300
SCORED = {"echo": True, "logprobs": True}


def prompts(seed: int, count: int) -> list[tuple[int, ...]]:
    chance = random.Random(seed)
    return [tuple(chance.randrange(1000, 20000) for _ in range(LENGTH)) for _ in range(count)]


def steps(engine: GenAIEngine, count: int) -> None:
    for _ in range(count):
        engine.step()
        engine.collect()


@pytest.fixture(scope="module")
def directory(short_model: Path) -> str:
    """Of a model that speaks no language: what was computed of a wrong cache shows in its log probabilities."""
    return str(short_model)


@pytest.fixture(scope="module")
def plain(directory: str) -> GenAIEngine:
    return GenAIEngine(TextSpec(directory, max_num_batched_tokens=LENGTH, properties=EXACT))


@pytest.fixture
def caching(directory: str) -> GenAIEngine:
    return GenAIEngine(
        TextSpec(directory, max_num_batched_tokens=STEP, enable_prefix_caching=True, properties=EXACT)
    )


@pytest.mark.parametrize("beams", [1, 2])
def test_a_prompt_that_was_cancelled_half_read_can_be_sent_again(
    caching: GenAIEngine, plain: GenAIEngine, beams: int
) -> None:
    """Also next to a beam search, of which is unknown whether its prompt is read."""
    if beams > 1:
        add(caching, 1, STORY, max_tokens=60, beams=beams)
        steps(caching, 3)
    for number, prompt in enumerate(prompts(7, 2), 50):
        add(caching, number, prompt, max_tokens=8)
        steps(caching, 2)
        caching.abort(number)
        assert caching.busy
        steps(caching, 1)
        queued = Queued(caching)
        queued.add(number + 10, prompt, max_tokens=8, logprobs=True)
        if beams > 1:
            queued.results[1] = Result()
        while not queued.results[number + 10].finish:
            queued.step()
        result, alone = queued.results[number + 10], generate(plain, prompt, max_tokens=8, logprobs=True)
        assert result.text == alone.text
        assert result.logprobs == pytest.approx(alone.logprobs, abs=1e-3)
    if beams == 1:
        assert not caching.busy


def test_of_several_only_the_first_is_read_on(caching: GenAIEngine) -> None:
    for number, prompt in enumerate(prompts(9, 3)):
        add(caching, number, prompt, max_tokens=8)
    steps(caching, 2)
    for number in (2, 1, 0):
        caching.abort(number)
    assert list(caching._held) == [0]
    for _ in range(LENGTH // STEP + 1):
        steps(caching, 1)
    assert not caching.busy


def test_the_scores_of_a_prompt_need_a_graph_without_a_prefix_cache(caching: GenAIEngine) -> None:
    with pytest.raises(InvalidArgument, match=r"logprobs with echo: this graph caches prefixes") as caught:
        add(caching, 1, FRANCE, **SCORED)
    assert caught.value.param == "logprobs"
    assert generate(caching, FRANCE, echo=True).text.startswith(FRANCE)


def test_a_prompt_whose_scores_are_wanted_is_computed_before_all_others(plain: GenAIEngine) -> None:
    expected = {n: generate(plain, prompt, max_tokens=2, **SCORED) for n, prompt in enumerate((LIST, STORY))}
    other = generate(plain, FRANCE, max_tokens=12).text
    add(plain, 1, FRANCE)
    with pytest.raises(Unavailable, match="no room for this request"):
        add(plain, 2, LIST, max_tokens=2, **SCORED)
    plain.abort(1)
    queued = Queued(plain)
    queued.add(10, FRANCE, max_tokens=12)
    for n, prompt in enumerate((LIST, STORY)):
        queued.add(20 + n, prompt, max_tokens=2, **SCORED)
        queued.add(30 + n, FRANCE, max_tokens=12)
    results = queued.run()
    for n, alone in expected.items():
        assert results[20 + n].text == alone.text
        assert results[20 + n].logprobs[1:] == pytest.approx(alone.logprobs[1:], abs=1e-3)
    assert {results[n].text for n in (10, 30, 31)} == {other}


def test_why_it_is_alone(plain: GenAIEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """To be removed when the library counts the rows of the others."""
    expected = generate(plain, LIST, max_tokens=2, **SCORED).logprobs[1:]
    monkeypatch.setattr(GenAIEngine, "_has_room", lambda *_: True)
    add(plain, 1, FRANCE)
    add(plain, 2, LIST, max_tokens=2, **SCORED)
    assert run(plain)[2].logprobs[1:] != pytest.approx(expected, abs=1e-2)
