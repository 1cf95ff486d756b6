"""Requests with drafts next to each other on tiny models (`tiny.py`) in the real engine: none is left out of a
step, so every answer is right, whole and counted, where a step or the cache has no room for all."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import openvino_genai as ov_genai
import pytest

from ovserve.engine.backends.genai import GenAIEngine
from ovserve.engine.protocol.messages import Failed
from ovserve.engine.protocol.specs import DraftSpec, TextSpec
from ovserve.llm.grammar import constraint as c
from tests.engine import tiny
from tests.engine.real import CHAT, EXACT, LIST, STORY, Result, add, generate, run
from tests.engine.test_full_cache import answer, crowd

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
PROMPT = "abcdefghijklmnop1234567abc"
ERRS = {"e": "z", "p": "a", "3": "9"}  # where the draft is wrong


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


@pytest.fixture(params=["lookup", "draft"])
def drafts(request: pytest.FixtureRequest, draft: DraftSpec) -> dict[str, Any]:
    return {"prompt_lookup": True} if request.param == "lookup" else {"draft": draft}


def together(engine: GenAIEngine, count: int, *, pause: int = 0, **sampling: Any) -> dict[int, Result]:
    """Answer prompts of several lengths, each added `pause` steps after the one before."""
    sampling = {"max_tokens": 60, "ignore_eos": True} | sampling
    results: dict[int, Result] = {number: Result() for number in range(count)}
    for number in range(count):
        add(engine, number, PROMPT[number % 7 :], **sampling)
        for _ in range(pause):
            engine.step()
            for word in engine.collect():
                assert not isinstance(word, Failed), word
                results[word.id].take(word)
    for number, result in run(engine).items():
        results[number].deltas += result.deltas
        results[number].reads += result.reads
        results[number].drafted += result.drafted
        results[number].accepted += result.accepted
        results[number].logprobs += result.logprobs
        results[number].finish = result.finish or results[number].finish
        results[number].failed = result.failed
    return results


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
def test_a_step_without_room_for_all_spoils_nobody(
    main: str, drafts: dict[str, Any], tokens: int, requests: int, pause: int
) -> None:
    engine = GenAIEngine(TextSpec(main, max_num_batched_tokens=tokens, max_num_seqs=tokens, **drafts))
    assert right(together(engine, requests, pause=pause))


@pytest.mark.parametrize("seed", [20, 107, 260, 301])
def test_prompts_of_which_the_two_models_have_cached_different_parts(
    main: str, draft: DraftSpec, seed: int
) -> None:
    """Conversations whose second turn began with a token twice."""
    engine = GenAIEngine(
        TextSpec(main, max_num_batched_tokens=32, max_num_seqs=8, enable_prefix_caching=True, draft=draft)
    )
    chance = random.Random(seed)
    prompt = "".join(chance.choices(LETTERS, k=chance.randrange(20, 150)))
    for _ in range(2):
        most = chance.randrange(1, 60)
        expected = answer(prompt, most)
        assert generate(engine, prompt, max_tokens=most, ignore_eos=True).text == expected
        prompt += expected + "".join(chance.choices(LETTERS, k=chance.randrange(0, 70)))


def test_without_split_fuse_prompts_wait_for_the_answers(main: str) -> None:
    engine = GenAIEngine(
        TextSpec(
            main, prompt_lookup=True, dynamic_split_fuse=False, max_num_batched_tokens=64, max_num_seqs=64
        )
    )
    assert right(together(engine, 4, pause=3))


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_a_full_cache_loses_nobody(
    main: str, drafts: dict[str, Any], seed: int, prefix_caching: bool
) -> None:
    engine = GenAIEngine(TextSpec(main, num_kv_blocks=8, enable_prefix_caching=prefix_caching, **drafts))
    for prompt, most, text in crowd(engine, seed, str):
        assert most is not None
        assert text == answer(prompt, most)


def test_without_split_fuse_a_full_cache_loses_nobody(main: str) -> None:
    engine = GenAIEngine(TextSpec(main, num_kv_blocks=8, prompt_lookup=True, dynamic_split_fuse=False))
    for prompt, most, text in crowd(engine, 1, str):
        assert most is not None
        assert text == answer(prompt, most)


class TestFull:
    """Eight requests of three blocks each, where three have room."""

    @pytest.fixture
    def engine(self, main: str, drafts: dict[str, Any]) -> GenAIEngine:
        return GenAIEngine(TextSpec(main, num_kv_blocks=8, **drafts))

    def test_who_gives_its_place_goes_on(self, engine: GenAIEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        alone = generate(engine, PROMPT, max_tokens=60, ignore_eos=True)
        gone: list[int] = []
        crowded = engine._drafting.crowded  # type: ignore[union-attr]

        def seen() -> list[int]:
            gone.extend(found := crowded())
            return found

        monkeypatch.setattr(engine._drafting, "crowded", seen)
        results = together(engine, 8)
        assert right(results)
        assert gone
        assert len(set(gone)) == len(gone), "nobody twice"
        for number, result in results.items():
            assert result.accepted == result.tokens - len(result.reads)
            # The first token after it went on was not drafted for.
            assert alone.drafted - 10 <= result.drafted <= alone.drafted + 10 * (number in gone)

    @pytest.mark.parametrize(
        "sampling",
        [
            {"logprobs": True},
            {"repetition_penalty": 1.01},
            {"presence_penalty": 0.01, "logprobs": True},
            {"echo": True},
            {"num_assistant_tokens": 20},
        ],
        ids=lambda sampling: next(iter(sampling)),
    )
    def test_whatever_was_asked_for(self, engine: GenAIEngine, sampling: dict[str, Any]) -> None:
        alone = generate(engine, PROMPT, max_tokens=60, ignore_eos=True, **sampling)
        for number, result in together(engine, 8, **sampling).items():
            echoed = PROMPT[number % 7 :] if sampling.get("echo") else ""
            assert result.text == echoed + alone.text.removeprefix(PROMPT if echoed else "")
            assert (result.finish, result.tokens) == ("length", 60)
            assert result.logprobs == pytest.approx(alone.logprobs, abs=1e-3)

    def test_a_stop_string(self, engine: GenAIEngine) -> None:
        for result in together(engine, 8, stop=("0123",)).values():
            assert (result.text, result.finish) == (answer(PROMPT, 60).partition("0123")[0], "stop")

    def test_who_leaves_while_it_waits(self, engine: GenAIEngine) -> None:
        for number in range(8):
            add(engine, number, PROMPT, max_tokens=60, ignore_eos=True)
        engine.step()
        engine.collect()
        for number in (0, 6, 7):
            engine.abort(number)
        results = run(engine)
        assert sorted(results) == [1, 2, 3, 4, 5]
        assert not engine.busy

    def test_an_answer_to_the_end_of_the_cache(self, engine: GenAIEngine) -> None:
        room = engine.facts.max_length
        assert room == 8 * 32
        asked = room - len(PROMPT)
        result = generate(engine, PROMPT, max_tokens=asked, ignore_eos=True)
        assert (result.text, result.tokens) == (answer(PROMPT, asked), asked)
        accepted = add(engine, 1, PROMPT, max_tokens=None, ignore_eos=True)
        result = run(engine)[1]
        assert (result.text, result.finish) == (answer(PROMPT, accepted.max_tokens), "length")
        assert asked - 4 <= accepted.max_tokens <= asked


def test_sampled_answers_are_whole(main: str) -> None:
    engine = GenAIEngine(TextSpec(main, num_kv_blocks=8, prompt_lookup=True))
    for result in together(engine, 8, temperature=0.01, seed=3).values():
        assert (result.text, result.tokens) == (answer(PROMPT, 60), 60)
        assert result.accepted == 60 - len(result.reads)


def test_a_grammar_is_kept(main: str) -> None:
    engine = GenAIEngine(TextSpec(main, num_kv_blocks=8, prompt_lookup=True))
    constraint = c.constrain(c.regex("(abcx){20}"), "x")
    engine.compile(-1, c.structural_tag(constraint.format))
    while not engine.compiled():
        pass
    for result in together(engine, 6, ignore_eos=False, max_tokens=100, constraint=constraint).values():
        assert (result.text, result.finish) == ("abcx" * 20, "stop")


def test_a_threshold_drafts_one_token_unless_logprobs_are_wanted(main: str, draft: DraftSpec) -> None:
    """The room that is reserved for drafts depends on this."""
    engine = GenAIEngine(TextSpec(main, draft=draft))
    unsure: dict[str, Any] = {"assistant_confidence_threshold": 0.001, "ignore_eos": True}
    assert max(generate(engine, PROMPT, **unsure).reads) == 2
    assert max(generate(engine, PROMPT, logprobs=True, **unsure).reads) > 2


@pytest.mark.long
def test_the_real_model_says_what_it_says_with_room(model_path: str) -> None:
    counting = CHAT.format("Count: one two three one two three one two")
    asked: list[tuple[str, dict[str, Any]]] = [
        (LIST, {}),
        (STORY, {"repetition_penalty": 1.2}),
        (counting, {"logprobs": True, "ignore_eos": True}),
        (LIST, {"num_assistant_tokens": 12}),
        (STORY, {"presence_penalty": 1.0}),
        (LIST + "apple", {"echo": True}),
    ]
    plain = GenAIEngine(TextSpec(model_path, properties=EXACT))
    full = GenAIEngine(
        TextSpec(
            model_path,
            properties=EXACT,
            prompt_lookup=True,
            num_kv_blocks=5,
            enable_prefix_caching=True,
        )
    )
    for number, (prompt, sampling) in enumerate(asked):
        add(full, number, prompt, max_tokens=50, **sampling)
    for number, result in run(full).items():
        prompt, sampling = asked[number]
        expected = generate(plain, prompt, max_tokens=50, **sampling)
        assert (result.text, result.finish, result.tokens) == (
            expected.text,
            expected.finish,
            expected.tokens,
        )
        assert result.logprobs == pytest.approx(expected.logprobs, abs=1e-2)
