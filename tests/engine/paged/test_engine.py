"""The paged engine step by step in this process: on the default model what ends and is known of its language, on two
layers of it the rest. Where rounding would show, both it and the library compute in f32 without quantised activations
(EXACT), so that their texts can be compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ovserve.engine.protocol.messages import Add, Compiled, StepItem
from ovserve.engine.protocol.specs import PagedTextSpec, TextSpec
from ovserve.errors import ContextLengthExceeded, Internal, InvalidArgument
from ovserve.kinds.text.worker.genai import GenAIEngine
from ovserve.kinds.text.worker.paged import PagedEngine
from ovserve.llm.grammar.constraint import Format, constrain, either, literal, structural_tag, tag
from ovserve.llm.grammar.writer import compact
from ovserve.llm.request import Sampling, TokenLogprob
from tests.breadth import examples
from tests.engine.real import CHAT, EXACT, FRANCE, LIST, STORY, Result, add, generate, run
from tests.schemas import FEW_KEYS, distinct

pytestmark = pytest.mark.long

PROMPTS = (
    FRANCE,
    STORY,
    LIST,
    "🎉🎉🎉🎉🎉🎉🎉🎉",
    "def f(x):\n    return x\n\ndef g(y):\n",
    CHAT.format("Say hello."),
)
LONG = CHAT.format("Count these words: " + "harbour " * 300)


@pytest.fixture(scope="module")
def engine(model_path: str) -> PagedEngine:
    return PagedEngine(PagedTextSpec(model_path, properties=EXACT, enable_prefix_caching=True))


@pytest.fixture(scope="module")
def library(model_path: str) -> GenAIEngine:
    return GenAIEngine(TextSpec(model_path, properties=EXACT))


@pytest.fixture(scope="module")
def short_directory(short_model: Path) -> str:
    """A model that speaks no language, for what any text shows: a token costs 3 ms of CPU time instead of 50."""
    return str(short_model)


@pytest.fixture(scope="module")
def short(short_directory: str) -> PagedEngine:
    return PagedEngine(PagedTextSpec(short_directory, properties=EXACT, enable_prefix_caching=True))


@pytest.fixture(scope="module")
def short_library(short_directory: str) -> GenAIEngine:
    return GenAIEngine(TextSpec(short_directory, properties=EXACT))


@pytest.fixture(scope="module")
def tiny(short_directory: str) -> PagedEngine:
    """128 tokens of cache."""
    return PagedEngine(PagedTextSpec(short_directory, properties=EXACT, num_kv_blocks=4))


@pytest.fixture(autouse=True)
def nothing_is_left_behind(engine: PagedEngine, short: PagedEngine) -> Iterator[None]:
    yield
    for each in (engine, short):
        for id_ in each.live():
            each.abort(id_)
        assert not each.busy
        pool = each._scheduler.pool
        assert pool.available == pool.size
        assert not any(pool.ref_counts)


def scored(engine: PagedEngine | GenAIEngine, prompt: str, **sampling: Any) -> list[TokenLogprob]:
    add(engine, 1, prompt, logprobs=True, **sampling)
    found: list[TokenLogprob] = []
    while engine.busy:
        engine.step()
        found += [p for item in engine.collect() if isinstance(item, StepItem) for p in item.logprobs or ()]
    return found


@pytest.mark.parametrize("prompt", [FRANCE, STORY, PROMPTS[4]])
def test_greedy_text_is_the_library_s(engine: PagedEngine, library: GenAIEngine, prompt: str) -> None:
    ours, its = (generate(e, prompt, max_tokens=32) for e in (engine, library))
    assert (ours.text, ours.tokens, ours.finish) == (its.text, its.tokens, its.finish)


@pytest.mark.parametrize("prompt", [*PROMPTS, LONG])
def test_what_is_no_language_is_the_library_s_too(
    short: PagedEngine, short_library: GenAIEngine, prompt: str
) -> None:
    """Such texts repeat themselves, so their log probabilities are compared as well."""
    ours, its = (generate(e, prompt, max_tokens=32, logprobs=True) for e in (short, short_library))
    assert (ours.text, ours.tokens, ours.finish) == (its.text, its.tokens, its.finish)
    assert ours.logprobs == pytest.approx(its.logprobs, abs=2e-3)


def test_neighbours_and_the_cut_of_prompts_change_nothing(
    short: PagedEngine, short_library: GenAIEngine
) -> None:
    prompts = [*PROMPTS, LONG] * 2
    texts = {prompt: generate(short_library, prompt, max_tokens=32).text for prompt in {*prompts}}
    together = [""] * len(prompts)

    def step() -> None:
        short.step()
        for item in short.collect():
            assert isinstance(item, StepItem)
            together[item.id] += item.text

    for id_, prompt in enumerate(prompts):
        add(short, id_, prompt, max_tokens=32)
        step()  # each arrives while others decode or are read
    while short.busy:
        step()
    assert together == [texts[prompt] for prompt in prompts]


def test_a_prefix_is_computed_once(short: PagedEngine) -> None:
    first = add(short, 1, LONG, max_tokens=8)
    text = run(short)[1].text
    again = add(short, 2, LONG, max_tokens=8)
    assert first.prompt_tokens == again.prompt_tokens
    assert again.cached_tokens == (again.prompt_tokens - 1) // 32 * 32
    assert run(short)[2].text == text
    other = add(short, 3, CHAT.format("Something else: " + "harbour " * 300), max_tokens=1)
    assert other.cached_tokens == 0


def test_an_answer_is_found_by_the_next_turn(short: PagedEngine, short_library: GenAIEngine) -> None:
    answer = generate(short, STORY, max_tokens=80).text
    item = STORY + answer + "<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"
    accepted = add(short, 2, item, max_tokens=8)
    assert accepted.cached_tokens is not None
    assert accepted.cached_tokens >= 64
    assert run(short)[2].text == generate(short_library, item, max_tokens=8).text


class TestLogprobs:
    def test_they_are_the_library_s(self, short: PagedEngine, short_library: GenAIEngine) -> None:
        for prompt in (FRANCE, STORY):
            ours, its = (scored(e, prompt, max_tokens=16) for e in (short, short_library))
            assert [p.utf8 for p in ours] == [p.utf8 for p in its]
            assert [p.logprob for p in ours] == pytest.approx([p.logprob for p in its], abs=2e-3)

    def test_those_of_an_echoed_prompt_too(self, short: PagedEngine, short_library: GenAIEngine) -> None:
        for prompt, tokens in ((FRANCE, 0), (FRANCE, 4), (LONG, 1)):
            ours, its = (scored(e, prompt, max_tokens=tokens, echo=True) for e in (short, short_library))
            assert ours[0].logprob is its[0].logprob is None
            assert [p.utf8 for p in ours] == [p.utf8 for p in its]
            assert [p.logprob for p in ours[1:]] == pytest.approx([p.logprob for p in its[1:]], abs=5e-3)

    def test_echoed_prompts_beside_others(self, short: PagedEngine) -> None:
        alone = scored(short, FRANCE, max_tokens=2, echo=True)
        add(short, 7, STORY, max_tokens=60)
        short.step()
        short.collect()
        add(short, 8, LONG, max_tokens=2)
        add(short, 9, FRANCE, max_tokens=2, echo=True, logprobs=True)
        found: list[TokenLogprob] = []
        while short.busy:
            short.step()
            found += [p for item in short.collect() if item.id == 9 for p in item.logprobs or ()]  # type: ignore[union-attr]
        assert [p.utf8 for p in found] == [p.utf8 for p in alone]
        assert [p.logprob for p in found[1:]] == pytest.approx([p.logprob for p in alone[1:]], abs=2e-3)

    @pytest.mark.parametrize("temperature", [0.0, 2.0])
    def test_the_most_likely_tokens(self, short: PagedEngine, temperature: float) -> None:
        for token in scored(short, STORY, max_tokens=12, top_logprobs=20, temperature=temperature):
            assert token.logprob is not None
            values = [top.logprob for top in token.top]
            assert len(values) == 20
            assert values == sorted(values, reverse=True)
            assert values[0] >= token.logprob - 1e-6
            named = [top.logprob for top in token.top if top.utf8 == token.utf8]
            assert named == [token.logprob] or token.logprob <= values[-1]


class TestBias:
    def test_forbids_and_forces(self, short: PagedEngine) -> None:
        first = scored(short, FRANCE, max_tokens=1)[0].utf8
        [id_] = short.text.encode(first.decode(), False)
        forbidden = scored(short, FRANCE, logit_bias=((id_, -100.0),))
        assert first not in [token.utf8 for token in forbidden]
        forced = generate(short, FRANCE, logit_bias=((id_, 100.0),), max_tokens=5)
        assert forced.text == first.decode() * 5

    @pytest.mark.parametrize("bias", [(49152, 1.0), (-1, 1.0), (5, float("nan")), (5, float("inf"))])
    def test_bad_ones_are_refused(self, short: PagedEngine, bias: tuple[int, float]) -> None:
        with pytest.raises(InvalidArgument, match="logit_bias"):
            add(short, 1, FRANCE, logit_bias=(bias,))


@pytest.fixture
def paying(short: PagedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows cost nothing, however busy the machine is."""
    monkeypatch.setattr(short._costs, "ratio", lambda requests, rows: 1.0)


@pytest.mark.usefixtures("paying")
class TestDrafts:
    def test_what_repeats_is_drafted_and_the_text_stays(self, short: PagedEngine) -> None:
        prompt = CHAT.format("Repeat: " + "the ship left the harbour in the morning, " * 6)
        plain = generate(short, prompt, max_tokens=80, num_assistant_tokens=0, ignore_eos=True)
        drafted = generate(short, prompt, max_tokens=80, ignore_eos=True)
        assert (plain.drafted, plain.accepted) == (0, 0)
        assert drafted.drafted >= drafted.accepted > 10
        assert drafted.text == plain.text
        assert (drafted.tokens, drafted.finish) == (80, "length")

    def test_a_seed_gives_the_same_text_with_and_without(self, short: PagedEngine) -> None:
        prompt = CHAT.format("Repeat: " + "the ship left the harbour in the morning, " * 6)
        texts = {
            generate(short, prompt, max_tokens=60, temperature=0.7, seed=3, num_assistant_tokens=n).text
            for n in (0, 2, None)
        }
        assert len(texts) == 1

    def test_a_stop_inside_a_draft_ends_there(self, short: PagedEngine) -> None:
        prompt = "the cat sat on the mat. the dog sat on the log. " * 6 + "the cat"
        free = generate(short, prompt, max_tokens=40).text
        stop = free[10:14]
        assert generate(short, prompt, stop=(stop,), max_tokens=40).text == free[: free.index(stop)]

    def test_nobody_drafts_beside_many(self, short: PagedEngine) -> None:
        for id_ in range(6):
            add(short, id_, LIST, max_tokens=30, ignore_eos=True)
        assert sum(result.drafted for result in run(short).values()) == 0


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}

MAPS: dict[str, Any] = {
    "map": FEW_KEYS,
    "maps": {**FEW_KEYS, "patternProperties": {"^[ab]+$": FEW_KEYS}, "maxProperties": 4},
    "array": {"type": "array", "items": FEW_KEYS, "minItems": 2, "maxItems": 3},
    "free keys": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 4},
}


CALL = '{"name": "f", "arguments": '


def constrained(engine: PagedEngine, form: Format | None = None, **sampling: Any) -> Result:
    constraint = constrain(form or compact(SCHEMA), "response_format")
    engine.grammars.compile(1, structural_tag(constraint.format))
    while engine.grammars.compiling:
        for word in engine.grammars.compiled():
            assert isinstance(word, Compiled), word
    return generate(engine, CHAT.format("Describe a fox."), constraint=constraint, max_tokens=300, **sampling)


class TestGrammars:
    @pytest.mark.parametrize("seed", range(6))
    def test_hot_answers_match_the_schema(self, short: PagedEngine, seed: int) -> None:
        result = constrained(short, temperature=2.0, seed=seed, logprobs=True, top_logprobs=3)
        assert result.finish == "stop"
        jsonschema.validate(json.loads(result.text), SCHEMA)

    @pytest.mark.parametrize(
        ("name", "call"), [*((name, "") for name in MAPS), ("map", CALL), ("free keys", CALL)]
    )
    def test_hot_maps_have_no_key_twice(self, short: PagedEngine, name: str, call: str) -> None:
        form = tag(call, compact(MAPS[name]), "}") if call else compact(MAPS[name])
        for seed in range(examples(1)):
            result = constrained(short, form, temperature=1.5, seed=seed)
            if result.finish == "stop" or name == "map":
                value = json.loads(result.text, object_pairs_hook=distinct)
                jsonschema.validate(value["arguments"] if call else value, MAPS[name])

    @pytest.mark.usefixtures("paying")
    def test_what_must_follow_is_drafted_and_the_text_stays(self, short: PagedEngine) -> None:
        plain, drafted = (constrained(short, num_assistant_tokens=n) for n in (0, None))
        assert plain.text == drafted.text
        assert drafted.accepted > 3
        assert len(drafted.reads) < len(plain.reads)

    @pytest.mark.parametrize("texts", [("é", "è"), ("日🎉", "日🎊"), ("\0a", "\0b")])
    @pytest.mark.usefixtures("paying")
    def test_what_must_follow_may_end_within_a_character(
        self, short: PagedEngine, texts: tuple[str, str]
    ) -> None:
        result = constrained(short, either([literal(text) for text in texts]), temperature=2.0)
        assert result.text in texts

    def test_one_that_was_not_compiled_is_a_fault(self, short: PagedEngine) -> None:
        with pytest.raises(Internal, match="not compiled"):
            add(short, 1, FRANCE, constraint=constrain(literal("never seen"), "guided_choice"))
        assert not short.busy


class TestFullCache:
    def test_an_answer_ends_when_it_is_full(self, tiny: PagedEngine) -> None:
        result = generate(tiny, STORY, ignore_eos=True, max_tokens=500)
        assert result.finish == "length"
        assert result.tokens == 128 - 18

    def test_longer_prompts_are_refused(self, tiny: PagedEngine) -> None:
        with pytest.raises(ContextLengthExceeded, match=r"is 128 tokens.*has 300 tokens"):
            add(tiny, 1, (28,) * 300)

    def test_those_that_exceed_it_together_finish_as_if_alone(self, tiny: PagedEngine) -> None:
        alone = generate(tiny, STORY, max_tokens=90, ignore_eos=True).text
        for id_ in range(6):
            add(tiny, id_, STORY, max_tokens=90, ignore_eos=True)
        results = run(tiny)
        assert {result.text for result in results.values()} == {alone}
        assert tiny._scheduler.pool.available == 4

    def test_one_that_leaves_makes_room(self, tiny: PagedEngine) -> None:
        for id_ in range(6):
            add(tiny, id_, STORY, max_tokens=90, ignore_eos=True)
        for _ in range(20):
            tiny.step()
            tiny.collect()
        for id_ in range(5):
            tiny.abort(id_)
        assert run(tiny)[5].finish == "length"
        assert not tiny.busy


class TestLimits:
    def test_max_tokens(self, short: PagedEngine) -> None:
        result = generate(short, STORY, max_tokens=7)
        assert (result.tokens, result.finish) == (7, "length")

    def test_min_tokens(self, engine: PagedEngine) -> None:
        assert generate(engine, FRANCE, min_tokens=30).tokens >= 30

    def test_stop_token_ids(self, engine: PagedEngine) -> None:
        [paris] = engine.text.encode(" Paris", False)
        result = generate(engine, FRANCE, stop_token_ids=(paris,))
        assert (result.text, result.finish) == ("The capital of France is", "stop")

    @pytest.mark.parametrize(
        ("sampling", "said"),
        [
            ({"temperature": float("nan")}, "temperature must be a finite number"),
            ({"temperature": -1.0}, "temperature"),
            ({"temperature": 1.0, "top_p": 0.0}, "top_p"),
            ({"temperature": 1.0, "top_k": -5}, "top_k"),
            ({"repetition_penalty": -1.0}, "repetition_penalty"),
            ({"beams": 4, "n": 5}, "num_return_sequences"),
            ({"beams": 4, "frequency_penalty": 1.0}, "frequency_penalty"),
            ({"beams": 4, "length_penalty": float("nan")}, "length_penalty must be a finite number"),
            ({"max_tokens": -1}, "max_tokens must be at least 0"),
        ],
    )
    def test_bad_values_are_refused(self, short: PagedEngine, sampling: dict[str, Any], said: str) -> None:
        with pytest.raises(InvalidArgument, match=said):
            add(short, 1, "x", **sampling)
        assert not short.busy

    def test_abort_twice_and_unknown(self, short: PagedEngine) -> None:
        add(short, 1, STORY, max_tokens=2000)
        short.step()
        for id_ in (1, 1, 99):
            short.abort(id_)
        short.step()
        assert short.collect() == []


def test_a_short_prompt_does_not_wait_for_a_long_one(short_directory: str) -> None:
    engine = PagedEngine(PagedTextSpec(short_directory, max_num_batched_tokens=64))
    add(engine, 1, (28,) * 600, max_tokens=2)
    engine.step()
    add(engine, 2, FRANCE, max_tokens=2)
    ended: list[int] = []
    while engine.busy:
        engine.step()
        ended += [item.id for item in engine.collect() if isinstance(item, StepItem) and item.last]
    assert ended == [2, 1]


def test_prompts_are_computed_whole_without_split_fuse(short_directory: str, short: PagedEngine) -> None:
    spec = PagedTextSpec(
        short_directory, properties=EXACT, max_num_batched_tokens=64, dynamic_split_fuse=False
    )
    whole = PagedEngine(spec)
    with pytest.raises(InvalidArgument, match="65 tokens; with dynamic_split_fuse off this graph takes 64"):
        add(whole, 1, (28,) * 65)
    prompts = (FRANCE, STORY, (28,) * 64, LIST)
    alone = [generate(short, prompt, max_tokens=12).text for prompt in prompts]
    for id_, prompt in enumerate(prompts):
        add(whole, id_, prompt, max_tokens=12)
    assert [result.text for _, result in sorted(run(whole).items())] == alone


def test_more_answers_than_a_step_takes_all_end(short_directory: str) -> None:
    engine = PagedEngine(PagedTextSpec(short_directory, max_num_batched_tokens=4))
    for id_ in range(10):
        engine.add(Add(id_, FRANCE, False, Sampling(temperature=0.0, max_tokens=6)))
    assert [result.tokens for result in run(engine).values()] == [6] * 10


def test_an_echoed_prompt_token_by_token(short_directory: str, short: PagedEngine) -> None:
    """Of each step's token the logits are needed, as of an answer's."""
    slow = PagedEngine(PagedTextSpec(short_directory, properties=EXACT, max_num_batched_tokens=1))
    whole, cut = (scored(each, "apple banana cherry", max_tokens=3, echo=True) for each in (short, slow))
    assert [token.text for token in cut] == [token.text for token in whole]
    assert [token.logprob for token in cut[1:]] == pytest.approx(
        [token.logprob for token in whole[1:]], abs=1e-3
    )


def test_drafts_that_fill_a_step_leave_prompts_waiting(
    short_directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = PagedEngine(PagedTextSpec(short_directory, properties=EXACT, max_num_batched_tokens=4))
    monkeypatch.setattr(engine._costs, "ratio", lambda requests, rows: 1.0)
    alone = generate(engine, STORY, max_tokens=80, ignore_eos=True)
    add(engine, 1, STORY, max_tokens=80, ignore_eos=True)
    for _ in range(12):
        engine.step()
        engine.collect()
    add(engine, 2, STORY, max_tokens=80, ignore_eos=True)
    assert alone.accepted > 4
    assert run(engine)[2].text == alone.text
