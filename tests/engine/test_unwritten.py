"""Prompts that leave half read do not spoil the prefix cache for those that come after them."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest

from ovserve.engine.backends.genai import GenAIEngine
from ovserve.engine.backends.genai.quirks.unwritten import Unwritten
from ovserve.engine.backends.genai.text import ids_tensor
from ovserve.engine.prefix_cache.kv_blocks import UPPER
from ovserve.engine.prefix_cache.model import Gain, PrefixCacheModel
from ovserve.engine.protocol.messages import Failed
from ovserve.engine.protocol.specs import TextSpec
from ovserve.errors import Unavailable
from ovserve.llm.request import Sampling
from tests.engine.real import EXACT, STORY, add, generate
from tests.engine.test_full_cache import crowd
from tests.engine.test_overtaking import Loop

pytestmark = pytest.mark.long

STEP = 100  # tokens: no whole number of blocks
LENGTH = 700


def prompts(seed: int, count: int) -> list[tuple[int, ...]]:
    chance = random.Random(seed)
    return [tuple(chance.randrange(1000, 20000) for _ in range(LENGTH)) for _ in range(count)]


def steps(engine: GenAIEngine, count: int) -> None:
    for _ in range(count):
        engine.step()
        engine.collect()


@pytest.fixture(scope="module")
def plain(model_path: str) -> GenAIEngine:
    return GenAIEngine(TextSpec(model_path, max_num_batched_tokens=LENGTH, properties=EXACT))


def caching(model_path: str, **options: object) -> GenAIEngine:
    given: dict[str, object] = {"max_num_batched_tokens": STEP, "enable_prefix_caching": True} | options
    return GenAIEngine(TextSpec(model_path, properties=EXACT, **given))  # type: ignore[arg-type]


@pytest.mark.parametrize("streams", [0, 3])
def test_a_prompt_that_was_cancelled_half_read_can_be_sent_again(
    model_path: str, plain: GenAIEngine, streams: int
) -> None:
    engine = caching(model_path)
    for number in range(streams):
        add(engine, 100 + number, STORY, max_tokens=400, ignore_eos=True)
    steps(engine, 4)
    for number, prompt in enumerate(prompts(5, 3)):
        add(engine, number, prompt, max_tokens=8)
        steps(engine, 2 + number)
        engine.abort(number)
        steps(engine, 2)
        again = [add(engine, 10 * (1 + number) + each, prompt, max_tokens=8) for each in range(2)]
        texts = [""] * 2
        while any(10 * (1 + number) + each in engine.live() for each in range(2)):
            engine.step()
            for item in engine.collect():
                assert not isinstance(item, Failed)
                if item.id < 100:
                    texts[item.id % 10] += item.text
        assert texts == [generate(plain, prompt, max_tokens=8).text] * 2
        assert again[0].cached_tokens  # what was read before that block
        assert again[0].cached_tokens % 32 == 0


def test_with_a_repetition_penalty_a_cancelled_prompt_is_read_to_the_end_of_its_block(
    model_path: str, plain: GenAIEngine
) -> None:
    engine = caching(model_path)
    for number, prompt in enumerate(prompts(6, 2), 50):
        add(engine, number, prompt, max_tokens=8, repetition_penalty=1.2)
        steps(engine, 2)
        engine.abort(number)
        assert engine.busy
        assert not engine.live()
        steps(engine, 1)
        found = generate(engine, prompt, max_tokens=8, repetition_penalty=1.2)
        assert found.failed is None
        assert found.text == generate(plain, prompt, max_tokens=8, repetition_penalty=1.2).text


def test_a_prompt_with_a_repetition_penalty_cannot_leave_out_what_was_left_before(model_path: str) -> None:
    engine = caching(model_path)
    [prompt] = prompts(10, 1)
    add(engine, 50, prompt, max_tokens=8)
    steps(engine, 2)
    engine.abort(50)
    steps(engine, 1)
    assert not engine.busy
    with pytest.raises(Unavailable, match="repetition_penalty"):
        add(engine, 51, prompt, max_tokens=8, repetition_penalty=1.2)
    assert not engine.live()
    assert generate(engine, prompt, max_tokens=8).failed is None


def test_where_the_cache_is_not_modelled_a_cancelled_prompt_is_read_whole(
    model_path: str, plain: GenAIEngine
) -> None:
    engine = caching(model_path, prompt_lookup=True)
    assert engine._accounts.prefix is None
    for number, prompt in enumerate(prompts(7, 2), 50):
        add(engine, number, prompt, max_tokens=8)
        steps(engine, 2)
        engine.abort(number)
        steps(engine, 1)
        assert generate(engine, prompt, max_tokens=8).text == generate(plain, prompt, max_tokens=8).text
    while engine.busy:
        steps(engine, 1)
    assert not engine._fading


def test_a_full_cache_gives_nobody_what_was_not_computed(model_path: str, plain: GenAIEngine) -> None:
    """Prompts with one beginning, half read when others need their blocks: three answers were wrong."""
    engine = caching(model_path, num_kv_blocks=8, max_num_batched_tokens=32)
    for prompt, most, text in crowd(
        engine, 0, lambda letters: tuple(1000 + 37 * ord(one) for one in letters)
    ):
        assert text == generate(plain, prompt, max_tokens=most, ignore_eos=True).text


def test_a_long_prompt_that_stepped_aside_is_answered_as_alone(model_path: str, plain: GenAIEngine) -> None:
    [long, short, *_] = prompts(8, 2)
    loop = Loop(Path(model_path))
    loop.arrive(1, long)
    loop.step(2)
    for number in range(3):
        loop.arrive(2 + number, short[20 * number : 20 * number + 20])
        loop.step()
    loop.run()
    assert loop.first[2] < loop.first[1]
    assert loop.texts[1] == generate(plain, long, max_tokens=8, ignore_eos=True).text


def test_the_model_of_the_cache_knows_what_was_not_computed() -> None:
    model = PrefixCacheModel(block=32, blocks=0, batch=100)

    def at(prompt: bytes, *, left: bool = True) -> int | None:
        return model.unwritten(model.lookup(prompt), left=left)

    prompt = array("q", range(300)).tobytes()
    assert at(prompt) is None
    model.add(1, prompt, 8)
    model.step([])  # 100 tokens: three blocks and 4 of the next one
    assert model.partly_written(1)
    assert at(prompt) is None  # the request still fills it
    assert at(prompt, left=False) == 96
    model.cancel(1)
    assert at(prompt) == 96
    model.step([])
    assert at(prompt) == 96
    other = array("q", [*range(96), *range(400, 600)]).tobytes()
    assert at(other) is None
    model.add(2, other, 8)
    model.step([])
    model.step([])
    model.step([Gain(2, [7], True)])
    assert at(other) is None


@pytest.mark.parametrize(("batch", "first"), [(10, 0), (100, 96)])
@pytest.mark.parametrize("cancelled", [1, 2, 5])
def test_all_get_the_same_name_whatever_was_cancelled(batch: int, first: int, cancelled: int) -> None:
    model = PrefixCacheModel(block=32, blocks=200, batch=batch)
    unwritten = Unwritten(caches=True, bounded=False, proven=True)
    ids = ids_tensor(range(300))

    def named() -> list[int]:
        return list(unwritten.named(model, ids, Sampling()).data[0])

    for number in range(cancelled):  # with a batch of 10, each leaves the first block under another name
        model.add(number, array("q", named()).tobytes(), 8)
        model.step([])
        model.cancel(number)
        model.step([])
    found = named()
    assert found == named()
    assert [one % UPPER for one in found] == list(range(300))
    changed = [at for at, one in enumerate(found) if one >= UPPER]
    assert changed[0] == first
    assert all(at % 32 == 0 for at in changed)
    assert model.unwritten(model.lookup(array("q", found).tobytes()), left=True) is None
    # A request under an old name, such as one that goes on after it was dropped, gets a new one too.
    again = unwritten.named(model, ids_tensor(found), Sampling()).data[0]
    assert list(again) == found


def test_of_prompts_without_a_model_only_the_first_is_read_on(model_path: str) -> None:
    engine = caching(model_path, prompt_lookup=True)
    for number, prompt in enumerate(prompts(9, 3)):
        add(engine, number, prompt, max_tokens=8)
    steps(engine, 2)
    for number in (2, 1, 0):
        engine.abort(number)
    assert [sequence.id for sequence in engine._fading] == [0]
    for _ in range(LENGTH // STEP):
        steps(engine, 1)
    assert not engine.busy
