"""The engine in this process and step by step: on the real default model where its language shows, else on two layers
of it. The process around it is tested elsewhere. Each test is a way in which text, counts or neighbours went wrong
before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ovserve.engine.protocol.messages import Add
from ovserve.engine.protocol.specs import TextSpec
from ovserve.errors import ContextLengthExceeded, InvalidArgument
from ovserve.kinds.text.worker.genai import GenAIEngine
from ovserve.kinds.text.worker.genai.options import generation_config
from ovserve.llm.request import Sampling
from tests.engine.real import CHAT, FRANCE, STORY, Queued, add, generate, run

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def engine(model: Path) -> GenAIEngine:
    return GenAIEngine(TextSpec(str(model)))


@pytest.fixture(scope="module")
def short(short_model: Path) -> GenAIEngine:
    """It speaks no language; a token costs 7 ms of CPU time instead of 40."""
    return GenAIEngine(TextSpec(str(short_model)))


@pytest.fixture(scope="module")
def tiny(short_model: Path) -> GenAIEngine:
    return GenAIEngine(TextSpec(str(short_model), num_kv_blocks=4))  # 128 tokens of cache


@pytest.fixture(autouse=True)
def nothing_is_left_behind(engine: GenAIEngine, short: GenAIEngine) -> Iterator[None]:
    yield
    for each in (engine, short):
        for id_ in each.live():
            each.abort(id_)
        if each.busy:
            each.step()
        assert not each.busy


def ids_of(engine: GenAIEngine, text: str) -> tuple[int, ...]:
    return tuple(engine.text._tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist())


def bare(engine: GenAIEngine, max_tokens: int, *prompts: str) -> list[list[int]]:
    """The ids the library itself generates for each, greedily and all at once."""
    sampling = Sampling(temperature=0.0)
    ends, admitted = engine.text.stop_ids(sampling), engine.grammars.admitted
    config = generation_config("plain", sampling, max_tokens, ends, engine.facts, admitted)
    tensors = [engine.text._tokenizer.encode(each, add_special_tokens=False).input_ids for each in prompts]
    results = engine._pipeline.generate(tensors, [config] * len(prompts))
    return [list(result.m_generation_ids[0]) for result in results]


def test_greedy_text_is_sensible_and_counts_include_the_end_token(engine: GenAIEngine) -> None:
    result = generate(engine, FRANCE)
    assert "Paris" in result.text
    assert "<|im_end|>" not in result.text
    assert result.finish == "stop"
    [ids] = bare(engine, 60, FRANCE)
    assert result.tokens == len(ids)
    assert ids[-1] in engine.facts.eos_token_ids


def test_facts(engine: GenAIEngine) -> None:
    facts = engine.facts
    assert facts.max_length == 8192
    assert facts.vocab_size == 49152
    assert (facts.bos_token, facts.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert facts.eos_token_ids == (2, 0)  # <|im_end|>, and <|endoftext|>, which the file does not name
    assert facts.chat_template is not None
    assert facts.architecture == "llama"
    assert facts.load_seconds > 0


def test_deltas_join_to_one_batched_decode(engine: GenAIEngine, subtests: pytest.Subtests) -> None:
    """Of prompts that are computed together, in ours as in the library: rounding depends on the size of a step."""
    prompts = (
        STORY,
        "🎉🎉🎉🎉🎉🎉🎉🎉",
        "日本語日本語日本語日本語日本語",
        "żółć żółć żółć żółć żółć",
        "def f(x):\n    return x\n\ndef g(y):\n",
        "👩‍🚀👩‍🚀👩‍🚀👩‍🚀👩‍🚀",
    )
    for id_, prompt in enumerate(prompts):
        add(engine, id_, prompt, max_tokens=48, skip_special_tokens=False)
    results = run(engine)
    for id_, ids in enumerate(bare(engine, 48, *prompts)):
        with subtests.test(prompts[id_]):
            if ids[-1] in engine.facts.eos_token_ids:
                ids.pop()
            assert results[id_].text == engine.text._tokenizer.decode(ids, skip_special_tokens=False)
            assert "\ufffd" not in results[id_].text
            assert len(results[id_].deltas) > 3  # streamed, not withheld


def test_a_character_of_several_tokens_comes_whole(engine: GenAIEngine) -> None:
    result = generate(engine, "🎉🎉🎉🎉🎉🎉🎉🎉", max_tokens=40)
    assert "🎉" in result.text
    assert len(result.deltas) < result.tokens


def test_the_table_and_the_library_decode_alike(engine: GenAIEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def deltas() -> list[list[str]]:
        for id_, prompt in enumerate((STORY, "🎉🎉🎉🎉🎉🎉🎉🎉", "日本語日本語日本語日本語日本語")):
            add(engine, id_, prompt, max_tokens=32)
        return [result.deltas for _, result in sorted(run(engine).items())]

    assert engine.text._token_bytes is not None
    by_table = deltas()
    monkeypatch.setattr(engine.text, "_token_bytes", None)
    assert deltas() == by_table
    monkeypatch.setattr(engine.text, "_can_fill", False)
    assert deltas() == by_table


def test_rows_of_a_batched_decode_do_not_get_padding_text(
    engine: GenAIEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.text, "_token_bytes", None)
    assert engine.text._can_fill
    rows = [list(ids_of(engine, text)) for text in ("a", "a longer text", "x y", "")]
    expected = ["a", "a longer text", "x y", ""]
    assert engine.text.decode(rows) == expected
    assert engine.text._decode_by_length(rows) == expected


class TestStopStrings:
    # Greedy answer: "The capital of France is Paris, capital of France."

    @pytest.mark.parametrize(
        ("stop", "expected"),
        [
            ("apit", "The c"),  # inside one token
            (" Paris", "The capital of France is"),
            ("ance is P", "The capital of Fr"),  # over three tokens
            (" ", "The"),
            ("T", ""),
        ],
    )
    def test_cut_exactly_at_the_character(self, engine: GenAIEngine, stop: str, expected: str) -> None:
        result = generate(engine, FRANCE, stop=(stop,))
        assert (result.text, result.finish) == (expected, "stop")
        result = generate(engine, FRANCE, stop=(stop,), include_stop=True)
        assert (result.text, result.finish) == (expected + stop, "stop")

    def test_withheld_text_comes_at_the_end(self, short: GenAIEngine) -> None:
        whole = generate(short, FRANCE)
        result = generate(short, FRANCE, stop=(whole.text[-3:] + "never",))
        assert (result.text, result.tokens) == (whole.text, whole.tokens)

    def test_the_engine_is_free_after_one_more_step(self, short: GenAIEngine) -> None:
        add(short, 1, STORY, stop=("a",), max_tokens=2000)
        while short.live():
            short.step()
            short.collect()
        short.step()
        assert not short.busy

    def test_neighbours_are_untouched(self, engine: GenAIEngine) -> None:
        alone = generate(engine, FRANCE)
        add(engine, 1, FRANCE)
        add(engine, 2, FRANCE, stop=("capital",))
        assert run(engine)[1].text == alone.text

    def test_an_empty_one_is_refused(self, engine: GenAIEngine) -> None:
        with pytest.raises(InvalidArgument, match="stop string"):
            add(engine, 1, FRANCE, stop=("",))


class TestLengths:
    def test_max_tokens(self, short: GenAIEngine) -> None:
        result = generate(short, STORY, max_tokens=7)
        assert (result.tokens, result.finish) == (7, "length")

    def test_prompt_over_the_context_is_refused_with_numbers(self, engine: GenAIEngine) -> None:
        with pytest.raises(ContextLengthExceeded, match=r"8192.*8300 tokens: shorten it by at least 109"):
            add(engine, 1, (28,) * 8300)
        with pytest.raises(ContextLengthExceeded, match="at least 1"):
            add(engine, 1, (28,) * 8192)

    def test_max_tokens_is_clamped_to_the_room_and_reported(self, engine: GenAIEngine) -> None:
        accepted = add(engine, 1, (28,) * 8190, max_tokens=50)
        assert (accepted.prompt_tokens, accepted.max_tokens) == (8190, 2)
        engine.abort(1)
        assert add(engine, 2, FRANCE, max_tokens=None).max_tokens == 8192 - 16

    def test_the_prompt_alone(self, engine: GenAIEngine) -> None:
        result = generate(engine, FRANCE, max_tokens=0)
        assert (result.text, result.tokens, result.finish) == ("", 0, "length")

    def test_min_tokens(self, engine: GenAIEngine) -> None:
        assert generate(engine, FRANCE, min_tokens=30).tokens >= 30

    def test_ignore_eos_runs_to_the_bound_and_hides_the_end_tokens(self, engine: GenAIEngine) -> None:
        result = generate(engine, FRANCE, ignore_eos=True, max_tokens=30)
        assert (result.tokens, result.finish) == (30, "length")
        assert "<|im_end|>" not in result.text
        shown = generate(engine, FRANCE, ignore_eos=True, max_tokens=30, skip_special_tokens=False)
        assert "<|im_end|>" in shown.text


class TestStopTokens:
    def test_end_at_the_token_without_its_text(self, engine: GenAIEngine) -> None:
        (paris,) = ids_of(engine, " Paris")
        for ignore_eos in (False, True):
            result = generate(engine, FRANCE, stop_token_ids=(paris,), ignore_eos=ignore_eos)
            assert (result.text, result.finish) == ("The capital of France is", "stop")


@pytest.mark.parametrize(
    ("prompt", "sampling", "said"),
    [
        ("", {}, "empty"),
        ((), {}, "empty"),
        ((49152,), {}, "token id 49152 is not in the vocabulary of 49152"),
        ((-1,), {}, "token id -1"),
        ("x", {"max_tokens": -1}, "max_tokens must be at least 0"),
        ("x", {"min_tokens": 9, "max_tokens": 5}, "min_new_tokens"),
        ("x", {"temperature": -1.0}, "temperature"),
        ("x", {"temperature": float("nan")}, "temperature must be a finite number"),
        ("x", {"temperature": 1.0, "top_p": 0.0}, "top_p"),
        ("x", {"temperature": 1.0, "min_p": 1.5}, "min_p"),
        ("x", {"temperature": 1.0, "seed": -1}, "rng_seed: -1 is not a possible value"),
        ("x", {"temperature": 1.0, "top_k": -5}, "top_k"),
        ("x", {"repetition_penalty": -1.0}, "repetition_penalty"),
        ("x", {"frequency_penalty": 9.0}, "frequence_penalty|frequency_penalty"),
        ("x", {"stop_token_ids": (-1,)}, "stop_token_ids"),
    ],
)
def test_what_could_raise_in_a_step_is_refused(
    short: GenAIEngine, prompt: str | tuple[int, ...], sampling: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said) as caught:
        add(short, 1, prompt, **sampling)
    assert ".cpp" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not short.busy
    assert generate(short, FRANCE, max_tokens=2).finish == "length"  # and the engine is none the worse


class TestSampling:
    def test_a_seed_repeats_and_another_differs(self, short: GenAIEngine) -> None:
        one, same, other = (
            generate(short, STORY, temperature=1.0, seed=seed, max_tokens=24).text for seed in (7, 7, 8)
        )
        assert one == same
        assert one != other

    @pytest.mark.parametrize("narrow", [{"top_k": 1}, {"min_p": 0.999}, {"top_p": 1e-6}])
    def test_one_candidate_equals_greedy(self, short: GenAIEngine, narrow: dict[str, Any]) -> None:
        greedy = generate(short, STORY, max_tokens=24).text
        assert generate(short, STORY, temperature=1.0, max_tokens=24, seed=3, **narrow).text == greedy

    @pytest.mark.parametrize(
        "penalty", [{"repetition_penalty": 1.8}, {"frequency_penalty": 2.0}, {"presence_penalty": 2.0}]
    )
    def test_penalties_change_the_text(self, short: GenAIEngine, penalty: dict[str, Any]) -> None:
        prompt = "one two one two one two one two one two"
        assert (
            generate(short, prompt, max_tokens=20, **penalty).text
            != generate(short, prompt, max_tokens=20).text
        )


def test_text_and_ids_are_the_same_prompt(short: GenAIEngine) -> None:
    assert generate(short, ids_of(short, FRANCE)).text == generate(short, FRANCE).text


def test_concurrent_requests_get_what_they_get_alone(short: GenAIEngine) -> None:
    prompts = [FRANCE, CHAT.format("Say hello."), STORY, "🎉🎉🎉🎉🎉🎉🎉🎉"] * 4
    for id_, prompt in enumerate(prompts):
        add(short, id_, prompt, max_tokens=24)
    together = run(short)
    assert len(together) == len(prompts)
    for id_, result in together.items():
        assert result.finish in ("stop", "length")
        # The same batch position does not give the same rounding, so only twins are compared.
        assert result.text == together[id_ % 4].text


def test_abort_twice_and_unknown(short: GenAIEngine) -> None:
    add(short, 1, STORY, max_tokens=2000)
    short.step()
    short.abort(1)
    short.abort(1)
    short.abort(99)
    short.step()
    assert short.collect() == []
    assert not short.busy


class TestFullCache:
    def test_what_was_generated_ends_as_length(self, tiny: GenAIEngine) -> None:
        result = generate(tiny, STORY, ignore_eos=True, max_tokens=500)
        assert result.finish == "length"
        assert 50 < result.tokens < 128

    def test_a_prompt_that_can_never_fit_is_refused(self, tiny: GenAIEngine) -> None:
        assert tiny.facts.max_length == 128
        with pytest.raises(ContextLengthExceeded, match="is 128 tokens.*has 300 tokens"):
            add(tiny, 1, (28,) * 300)
        assert add(tiny, 1, (28,) * 100, max_tokens=500).max_tokens == 28
        tiny.abort(1)
        run(tiny)

    def test_one_that_came_in_all_the_same_is_told_why(
        self, tiny: GenAIEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tiny, "facts", msgspec.structs.replace(tiny.facts, max_length=8192))
        result = generate(tiny, (28,) * 300)
        assert result.failed is not None
        assert result.failed.kind == "resource_exhausted"
        assert "300 tokens" in result.failed.message
        assert "0.1 MiB" in result.failed.message
        assert generate(tiny, FRANCE, ignore_eos=True).finish == "length"

    def test_requests_that_exceed_it_together_all_finish(self, tiny: GenAIEngine) -> None:
        queued = Queued(tiny)
        for id_ in range(6):
            queued.add(id_, STORY, max_tokens=40, ignore_eos=True)
        assert [result.finish for result in queued.run().values()] == ["length"] * 6


def test_without_split_fuse_a_prompt_over_the_batch_limit_is_refused_not_fatal(short_model: Path) -> None:
    """The library accepts it and raises in step(), which would take every neighbour with it."""
    spec = TextSpec(str(short_model), dynamic_split_fuse=False, max_num_batched_tokens=64, max_num_seqs=8)
    engine = GenAIEngine(spec)
    fits, over = tuple([100] * 64), tuple([100] * 65)
    with pytest.raises(InvalidArgument, match=r"65 tokens.*64 \(max_num_batched_tokens\)"):
        engine.add(Add(1, over, False, Sampling(max_tokens=2)))
    engine.add(Add(2, fits, False, Sampling(max_tokens=2, ignore_eos=True)))
    while engine.busy:
        engine.step()
        engine.collect()


def test_prompts_tokenised_together_have_the_ids_they_have_alone(engine: GenAIEngine) -> None:
    """Rows of one call are filled up to the longest; the filling must not get into a prompt."""
    texts = (FRANCE, "a", STORY, "", "日本語 👩‍👩‍👧", CHAT.format("x " * 300), "<|endoftext|> in a text")
    adds = [Add(i, text, i % 3 == 0, Sampling()) for i, text in enumerate([*texts, *texts])]
    adds.append(Add(99, (1, 2, 3), True, Sampling()))
    together = engine.encode_prompts(adds)
    assert set(together) == {*range(2 * len(texts)), 99}
    assert together[99].data[0].tolist() == [1, 2, 3]
    for one in adds[:-1]:
        alone = engine.text.tokenize((str(one.prompt),), one.add_special_tokens)[0]
        assert together[one.id].data[0].tolist() == alone


def test_a_prompt_longer_than_the_tokenizer_goes_is_tokenised_whole_beside_others(
    engine: GenAIEngine,
) -> None:
    long = "word " * 9000
    encoded = engine.encode_prompts([Add(1, long, False, Sampling()), Add(2, "a", False, Sampling())])
    assert encoded[1].data[0].tolist() == engine.text.tokenize((long,), False)[0]
    assert encoded[2].shape[1] == 1


def test_a_prompt_that_cannot_be_tokenised_is_left_to_the_refusal(engine: GenAIEngine) -> None:
    wrong = Add(1, (10**9,), False, Sampling())
    assert set(engine.encode_prompts([wrong, Add(2, "a", False, Sampling())])) == {2}
    with pytest.raises(InvalidArgument, match="1000000000"):
        engine.add(wrong, None)


def test_usage_tells_which_prompts_are_still_read(short: GenAIEngine) -> None:
    size = TextSpec("").max_num_batched_tokens
    add(short, 71, tuple(range(1000, 1000 + size + size // 2)), max_tokens=2)
    short.step()
    assert short.collect() == []
    assert short.usage().to_prefill == ((71, size + size // 2),)  # the library does not tell how far it is
    short.step()
    assert short.collect()
    assert short.usage().to_prefill == ()
