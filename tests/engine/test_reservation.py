"""More requests than the cache or a step has room for: each waits for its worst case, so every answer is
right, whole and counted. The tiny models (`tiny.py`) say after each character the next one, so every answer
is known."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import openvino_genai as ov_genai
import pytest

from ovserve.engine.protocol.specs import CacheEviction, DraftSpec, TextSpec
from ovserve.errors import Unavailable
from ovserve.kinds.text.worker.genai import GenAIEngine
from ovserve.kinds.text.worker.genai.continuous import CacheReservation
from ovserve.llm.grammar import constraint as c
from ovserve.llm.request import Sampling
from tests.breadth import examples
from tests.engine import tiny
from tests.engine.real import EXACT, Queued, Result, add, generate, run

BLOCKS = 8  # of 32 tokens
REQUESTS = 30
LONGEST = 300  # answer, in tokens
PROMPT = "abcdefghijklmnop1234567abc"
ERRS = {"e": "z", "p": "a", "3": "9"}  # where the draft is wrong


def answer(prompt: str, tokens: int) -> str:
    at = tiny.ENDLESS.index(prompt[-1]) + 1
    return (tiny.ENDLESS * (tokens // len(tiny.ENDLESS) + 2))[at : at + tokens]


@pytest.fixture(scope="module")
def main(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("main") / "main.gguf"
    tiny.write(path, tiny.table())
    return str(path)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> DraftSpec:
    directory = tmp_path_factory.mktemp("draft")
    tiny.write(directory / "draft.gguf", tiny.table() | ERRS)
    ov_genai.LLMPipeline(str(directory / "draft.gguf"), "CPU", enable_save_ov_model=True)
    (directory / "draft.gguf").unlink()
    return DraftSpec(str(directory))


@pytest.fixture(scope="module", params=["lookup", "draft"])
def drafts(request: pytest.FixtureRequest, draft: DraftSpec) -> dict[str, Any]:
    return {"prompt_lookup": True} if request.param == "lookup" else {"draft": draft}


@pytest.fixture(scope="module")
def small(main: str, drafts: dict[str, Any]) -> GenAIEngine:
    """An engine with drafts and a small cache, for tests after which it is idle."""
    return GenAIEngine(TextSpec(main, num_kv_blocks=BLOCKS, **drafts))


Prompt = TypeVar("Prompt", str, tuple[int, ...])


def crowd(
    engine: GenAIEngine,
    seed: int,
    prompt_of: Callable[[str], Prompt],
    longest: int = LONGEST,
    requests: int = REQUESTS,
) -> list[tuple[Prompt, int, Result]]:
    """Have requests come and leave at any time. Return the prompts of those that stayed, the most tokens, and
    their answers."""
    chance = random.Random(seed)
    shared = "".join(chance.choices("abcdefghij", k=300))
    prompts: dict[int, Prompt] = {}
    queued = Queued(engine)
    for _ in range(5000):
        if len(prompts) < requests and chance.random() < 0.5:
            size = chance.choice([5, 30, 60, 120, 200, 250])
            letters = shared[: size // 2] + "".join(chance.choices("abcdefghij", k=size - size // 2))
            prompts[number := len(prompts)] = prompt_of(letters)
            most = chance.choice([1, min(20, longest), min(100, longest), longest])
            if chance.random() < 0.2 and longest == LONGEST and engine.facts.cache_tokens:
                most = None
            queued.add(number, prompts[number], max_tokens=most, ignore_eos=True)
        running = [number for number, result in queued.results.items() if not result.finish]
        aborted = len(prompts) - len(queued.results)
        if running and aborted < requests // 3 and chance.random() < 0.05:
            queued.abort(chance.choice(running))
        queued.step()
        if len(prompts) == requests and not running:
            break
    assert len(queued.run()) < requests
    assert queued.most > 1, "they ran next to each other"
    return [
        (prompts[number], queued.accepted[number].max_tokens, result)
        for number, result in queued.results.items()
    ]


@pytest.mark.parametrize(
    "options",
    [{}, {"enable_prefix_caching": True}, {"cache_eviction": CacheEviction(32, 32, 96)}],
    ids=["plain", "prefix caching", "eviction"],
)
@pytest.mark.parametrize("seed", range(examples(1)))
def test_in_a_small_cache_every_answer_is_whole(main: str, seed: int, options: dict[str, Any]) -> None:
    blocks = 12 if "cache_eviction" in options else BLOCKS
    engine = GenAIEngine(TextSpec(main, num_kv_blocks=blocks, max_num_batched_tokens=32, **options))
    for prompt, most, result in crowd(engine, seed, str):
        assert (result.text, result.tokens) == (answer(prompt, most), most)


@pytest.mark.parametrize(
    ("drafts", "prefix_caching"),
    [("lookup", False), ("lookup", True), ("draft", False)],  # no graph can ask for a draft and caching
    indirect=["drafts"],
)
@pytest.mark.parametrize("seed", range(examples(1)))
def test_with_drafts_too(main: str, drafts: dict[str, Any], seed: int, prefix_caching: bool) -> None:
    engine = GenAIEngine(TextSpec(main, num_kv_blocks=BLOCKS, enable_prefix_caching=prefix_caching, **drafts))
    for prompt, most, result in crowd(engine, seed, str):
        assert result.text == answer(prompt, most)


def test_without_split_fuse_too(main: str) -> None:
    engine = GenAIEngine(TextSpec(main, num_kv_blocks=BLOCKS, prompt_lookup=True, dynamic_split_fuse=False))
    for prompt, most, result in crowd(engine, 1, str):
        assert result.text == answer(prompt, most)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_layers_of_a_real_model_answer_as_alone(short_model: Path) -> None:
    """In f32, with prompts that have one beginning, half read when others are cancelled."""
    directory = str(short_model)
    alone = GenAIEngine(TextSpec(directory, properties=EXACT))
    engine = GenAIEngine(
        TextSpec(
            directory,
            properties=EXACT,
            num_kv_blocks=BLOCKS,
            max_num_batched_tokens=32,
            enable_prefix_caching=True,
        )
    )
    for prompt, most, result in crowd(
        engine, 0, lambda letters: tuple(1000 + 37 * ord(one) for one in letters), longest=16, requests=12
    ):
        assert result.text == generate(alone, prompt, max_tokens=most, ignore_eos=True).text


def together(engine: GenAIEngine, count: int, *, pause: int = 0, **sampling: Any) -> dict[int, Result]:
    """Answer prompts of several lengths, each sent `pause` steps after the one before."""
    queued = Queued(engine)
    for number in range(count):
        queued.add(number, PROMPT[number % 7 :], **{"max_tokens": 60, "ignore_eos": True} | sampling)
        for _ in range(pause):
            queued.step()
    return queued.run()


def right(results: dict[int, Result], tokens: int = 60) -> bool:
    return all(
        (result.text, result.finish, result.tokens) == (answer(PROMPT, tokens), "length", tokens)
        for result in results.values()
    )


@pytest.mark.parametrize(
    ("tokens", "requests", "pause"),
    [(32, 10, 0), (32, 6, 0), (20, 8, 1), (256, 60, 0)],
    ids=["two rounds", "one is cut", "prompts are cut", "the default"],
)
def test_a_step_without_room_for_all_spoils_no_drafts(
    main: str, drafts: dict[str, Any], tokens: int, requests: int, pause: int
) -> None:
    engine = GenAIEngine(TextSpec(main, max_num_batched_tokens=tokens, max_num_seqs=tokens, **drafts))
    assert right(together(engine, requests, pause=pause))


def test_without_split_fuse_prompts_wait_for_the_answers(main: str) -> None:
    engine = GenAIEngine(
        TextSpec(
            main, prompt_lookup=True, dynamic_split_fuse=False, max_num_batched_tokens=64, max_num_seqs=64
        )
    )
    assert right(together(engine, 4, pause=3))


@pytest.mark.parametrize(
    "sampling",
    [
        {"logprobs": True},
        {"repetition_penalty": 1.01},
        {"presence_penalty": 0.01, "logprobs": True},
        {"echo": True},
        {"num_assistant_tokens": 20},
        {"stop": ("0123",)},
    ],
    ids=lambda sampling: next(iter(sampling)),
)
def test_whatever_was_asked_for(small: GenAIEngine, sampling: dict[str, Any]) -> None:
    alone = generate(small, PROMPT, max_tokens=60, ignore_eos=True, **sampling)
    for number, result in together(small, 8, **sampling).items():
        echoed = PROMPT[number % 7 :] if sampling.get("echo") else ""
        assert result.text == echoed + alone.text.removeprefix(PROMPT if echoed else "")
        assert result.finish == alone.finish
        assert result.logprobs == pytest.approx(alone.logprobs, abs=1e-3)


def test_an_answer_to_the_end_of_the_cache(small: GenAIEngine) -> None:
    engine = small
    room = engine.facts.max_length
    assert room == BLOCKS * 32
    asked = room - len(PROMPT)
    result = generate(engine, PROMPT, max_tokens=asked, ignore_eos=True)
    assert (result.text, result.tokens) == (answer(PROMPT, asked), asked)
    accepted = add(engine, 1, PROMPT, max_tokens=None, ignore_eos=True)
    result = run(engine)[1]
    assert (result.text, result.finish) == (answer(PROMPT, accepted.max_tokens), "length")
    assert asked - 4 <= accepted.max_tokens <= asked


def test_sampled_answers_are_whole(main: str) -> None:
    engine = GenAIEngine(TextSpec(main, num_kv_blocks=BLOCKS, prompt_lookup=True))
    for result in together(engine, 8, temperature=0.01, seed=3).values():
        assert (result.text, result.tokens) == (answer(PROMPT, 60), 60)
        assert result.accepted == 60 - len(result.reads)


def test_a_grammar_is_kept(main: str) -> None:
    engine = GenAIEngine(TextSpec(main, num_kv_blocks=BLOCKS, prompt_lookup=True))
    constraint = c.constrain(c.regex("(abcx){20}"), "x")
    engine.grammars.compile(-1, c.structural_tag(constraint.format))
    while not engine.grammars.compiled():
        pass
    for result in together(engine, 6, ignore_eos=False, max_tokens=100, constraint=constraint).values():
        assert (result.text, result.finish) == ("abcx" * 20, "stop")


def test_a_threshold_drafts_one_token_unless_logprobs_are_wanted(main: str, draft: DraftSpec) -> None:
    """The room that is reserved for drafts depends on this."""
    engine = GenAIEngine(TextSpec(main, draft=draft))
    unsure: dict[str, Any] = {"assistant_confidence_threshold": 0.001, "ignore_eos": True}
    assert max(generate(engine, PROMPT, **unsure).reads) == 2
    assert max(generate(engine, PROMPT, logprobs=True, **unsure).reads) > 2


def test_beams_reserve_blocks_of_their_own(main: str) -> None:
    engine = GenAIEngine(TextSpec(main, num_kv_blocks=BLOCKS))
    add(engine, 1, PROMPT, beams=3, max_tokens=10)  # 3 times two blocks, and one each where they part
    assert not engine._reservation.fits(engine._reservation.demand(Sampling(), 1, 1))
    with pytest.raises(Unavailable, match="no room for this request"):
        add(engine, 2, PROMPT, max_tokens=1)
    assert run(engine)[1].failed is None
    assert add(engine, 2, PROMPT, max_tokens=1).max_tokens == 1
    run(engine)


def test_a_cancelled_request_keeps_its_blocks_for_a_step(main: str) -> None:
    engine = GenAIEngine(TextSpec(main, num_kv_blocks=BLOCKS))
    add(engine, 1, PROMPT, max_tokens=100, ignore_eos=True)
    add(engine, 2, "a", max_tokens=20, ignore_eos=True)
    engine.step()
    engine.collect()
    engine.abort(1)
    with pytest.raises(Unavailable):
        add(engine, 3, PROMPT, max_tokens=150)
    engine.step()
    engine.collect()
    add(engine, 3, PROMPT, max_tokens=150, ignore_eos=True)
    assert run(engine)[3].text == answer(PROMPT, 150)


def test_a_cache_that_grows_holds_nobody_back() -> None:
    room = CacheReservation(TextSpec("m"), None)
    assert room.unbounded
    for number in range(100):
        demand = room.demand(Sampling(), 10_000, 0)
        assert room.fits(demand)
        room.admitted(number, demand)
