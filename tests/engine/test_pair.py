"""Drafted tokens on tiny models (`tiny.py`) in the real engine: the same text as without them, constraints kept,
counts right; and what each refusal of llm/decoding.py spares the client, shown on the library itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openvino_genai as ov_genai
import pytest

from ovserve.engine.protocol.messages import Compiled
from ovserve.engine.protocol.specs import CacheEviction, DraftSpec, TextSpec
from ovserve.errors import ContextLengthExceeded, InvalidArgument, LoadError
from ovserve.kinds.text.worker.genai import GenAIEngine
from ovserve.llm.grammar import constraint as c
from tests.engine import tiny
from tests.engine.real import Queued, Result, add, bare_ids, generate, run

pytestmark = pytest.mark.long

REPEATS = "abcdefghijklmnop1234567abc"
ERRS = {"e": "z", "p": "a", "3": "9", **dict.fromkeys(tiny.ENDING, "A")}  # where the draft is wrong


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, DraftSpec]:
    directory = tmp_path_factory.mktemp("pair")
    main, draft = directory / "main.gguf", directory / "draft"
    tiny.write(main, tiny.table())
    draft.mkdir()
    tiny.write(draft / "draft.gguf", tiny.table() | ERRS)
    ov_genai.LLMPipeline(str(draft / "draft.gguf"), "CPU", enable_save_ov_model=True)
    (draft / "draft.gguf").unlink()
    return str(main), DraftSpec(str(draft))


@pytest.fixture(scope="module")
def plain(pair: tuple[str, DraftSpec]) -> GenAIEngine:
    return GenAIEngine(TextSpec(pair[0]))


@pytest.fixture(scope="module")
def lookup(pair: tuple[str, DraftSpec]) -> GenAIEngine:
    return GenAIEngine(TextSpec(pair[0], prompt_lookup=True))


@pytest.fixture(scope="module")
def draft(pair: tuple[str, DraftSpec]) -> GenAIEngine:
    return GenAIEngine(TextSpec(pair[0], draft=pair[1]))


@pytest.fixture(scope="module")
def small(pair: tuple[str, DraftSpec]) -> GenAIEngine:
    return GenAIEngine(TextSpec(pair[0], num_kv_blocks=6, draft=pair[1]))


def bare(engine: GenAIEngine, prompt: str, **settings: Any) -> str:
    """What the library answers without our rules."""
    return engine.text.decode([bare_ids(engine, prompt, **settings)])[0]


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [
        ("a", {}),
        (REPEATS, {}),
        ("xA", {}),
        ("xX", {"ignore_eos": True}),
        (REPEATS, {"stop": ("789",)}),
        (REPEATS, {"stop_token_ids": (64,)}),
        (REPEATS, {"echo": True}),
        (REPEATS, {"repetition_penalty": 1.5}),
        (REPEATS, {"max_tokens": 1}),
        (REPEATS, {"max_tokens": 2}),
        (REPEATS, {"num_assistant_tokens": 1}),
        (REPEATS, {"num_assistant_tokens": 64, "max_ngram_size": 64}),
    ],
)
def test_greedy_text_is_that_of_plain_decoding(
    plain: GenAIEngine, assisted: GenAIEngine, prompt: str, sampling: dict[str, Any]
) -> None:
    expected, drafted = generate(plain, prompt, **sampling), generate(assisted, prompt, **sampling)
    assert (drafted.text, drafted.finish) == (expected.text, expected.finish)
    assert drafted.tokens == expected.tokens or "stop" in sampling  # the step behind the cut counts


def test_what_was_drafted_and_accepted_is_counted(assisted: GenAIEngine, lookup: GenAIEngine) -> None:
    result = generate(assisted, REPEATS)
    assert result.tokens == 40
    assert max(result.reads) == 6
    assert result.accepted == result.tokens - len(result.reads)
    if assisted is lookup:  # the library does not tell
        assert (result.accepted > 0, result.drafted) == (True, 0)
    else:
        assert 0 < result.accepted < result.drafted <= 5 * len(result.reads)


def test_of_a_draft_everything_up_to_its_first_error_is_kept(draft: GenAIEngine) -> None:
    """After a: bcde is right, z is not; then f to k, and so on."""
    assert generate(draft, "a", max_tokens=12).reads == [1, 4, 6, 1]
    sure = generate(draft, "a", assistant_confidence_threshold=0.5)
    assert sure.accepted > 0
    assert sure.drafted == 0  # the library does not tell


def test_neighbours_and_aborts(assisted: GenAIEngine) -> None:
    alone = generate(assisted, REPEATS).text
    add(assisted, 1, REPEATS)
    add(assisted, 2, "a", max_tokens=200)
    assisted.step()
    assisted.abort(2)
    add(assisted, 3, REPEATS)
    results = run(assisted)
    assert (results[1].text, results[3].text) == (alone, alone)


class TestConstraints:
    """They hold for drafted tokens too. That they do not was once believed, and refused."""

    def held(self, engine: GenAIEngine, pattern: str, **sampling: Any) -> Result:
        constraint = c.constrain(c.regex(pattern), "x")
        engine.grammars.compile(-1, c.structural_tag(constraint.format))
        while not (words := engine.grammars.compiled()):
            pass
        assert words == [Compiled(-1)]
        return generate(engine, REPEATS, constraint=constraint, **sampling)

    @pytest.mark.parametrize("pattern", ["[0-9]{3}", "[a-m]{12}", "([a-d]{4}|x){5}z", "(abc|def){6}"])
    def test_they_are_enforced(self, plain: GenAIEngine, assisted: GenAIEngine, pattern: str) -> None:
        expected, drafted = self.held(plain, pattern), self.held(assisted, pattern)
        assert (drafted.text, drafted.finish) == (expected.text, "stop")

    def test_against_what_is_drafted(self, assisted: GenAIEngine) -> None:
        """The free answer goes on with d; the grammar wants x now and then, which no draft proposes."""
        result = self.held(assisted, "(abcx){6}")
        assert result.text == "abcx" * 6
        assert result.accepted > 0

    def test_in_sampled_text(self, plain: GenAIEngine, lookup: GenAIEngine) -> None:
        drawn = {"temperature": 1.0, "seed": 3}
        assert (
            self.held(lookup, "(abc|def){6}", **drawn).text == self.held(plain, "(abc|def){6}", **drawn).text
        )


class TestRefused:
    @pytest.mark.parametrize(
        ("sampling", "param", "says"),
        [
            ({"beams": 4, "n": 2}, "best_of", "best_of: 4 is not possible with"),
            ({"min_tokens": 30}, "min_tokens", "min_tokens: 30 is not possible with"),
            ({"num_assistant_tokens": 65}, "num_assistant_tokens", "at most 64, got 65"),
            ({"max_ngram_size": 65}, "max_ngram_size", "at most 64, got 65"),
        ],
    )
    def test_by_name(self, assisted: GenAIEngine, sampling: dict[str, Any], param: str, says: str) -> None:
        with pytest.raises(InvalidArgument, match=says) as caught:
            add(assisted, 1, REPEATS, **sampling)
        assert caught.value.param == param

    @pytest.mark.parametrize("settings", [{"num_beams": 3}, {"do_sample": True, "num_return_sequences": 2}])
    def test_beams_since_the_library_raises(self, assisted: GenAIEngine, settings: dict[str, Any]) -> None:
        """And several choices in one call; each is a request of its own here (`engine/client/split.py`)."""
        with pytest.raises(RuntimeError, match="not compatible with assistant generation"):
            bare(assisted, REPEATS, **settings)

    def test_min_tokens_since_the_library_forgets_them(
        self, plain: GenAIEngine, assisted: GenAIEngine
    ) -> None:
        """It counts those it has rejected."""
        prompt = "".join(f"{letter}ab" for letter in tiny.ENDING) + "A"  # what is looked up is wrong
        assert bare(plain, prompt, min_new_tokens=30).startswith(tiny.ENDING[1:] + "!")
        assert bare(assisted, prompt, min_new_tokens=30) == tiny.ENDING[1:] + tiny.END

    def test_temperature_with_a_draft_since_its_errors_pass(
        self, plain: GenAIEngine, draft: GenAIEngine
    ) -> None:
        """Drawing from one candidate is greedy decoding, and plain decoding has it so."""
        with pytest.raises(InvalidArgument, match="temperature: 0.5 is not possible with a draft model"):
            add(draft, 1, REPEATS, temperature=0.5)
        drawn = {"do_sample": True, "temperature": 1.0, "top_k": 1}
        assert bare(plain, "a", **drawn) == bare(plain, "a") == bare(draft, "a")
        assert "ez" in bare(draft, "a", **drawn)

    def test_a_threshold_with_lookup_since_the_library_raises(self, lookup: GenAIEngine) -> None:
        with pytest.raises(RuntimeError, match="mutually exclusive"):
            bare(lookup, REPEATS, assistant_confidence_threshold=0.5)
        with pytest.raises(RuntimeError, match="should be specified"):
            bare(lookup, REPEATS, assistant_confidence_threshold=0.5, num_assistant_tokens=0)

    def test_no_length_since_the_library_raises_in_a_step(self, pair: tuple[str, DraftSpec]) -> None:
        """And is of no use any more. So `filled` has a default for everybody."""
        engine = GenAIEngine(TextSpec(pair[0], draft=pair[1]))
        assert generate(engine, "xA", num_assistant_tokens=0).finish == "stop"
        with pytest.raises(RuntimeError):
            bare(engine, REPEATS, num_assistant_tokens=0)
        with pytest.raises(RuntimeError):
            bare(engine, REPEATS)

    def test_eviction_since_the_engine_dies_of_it(self, pair: tuple[str, DraftSpec]) -> None:
        """With lookup too, but not on this model: see test_engine_options.py."""
        engine = GenAIEngine(TextSpec(pair[0], cache_eviction=CacheEviction(32, 32, 96), draft=pair[1]))
        with pytest.raises(RuntimeError, match="cache_eviction"):
            generate(engine, REPEATS, max_tokens=200)


class TestFullCache:
    def test_it_bounds_prompt_and_answer(self, small: GenAIEngine) -> None:
        assert small.facts.max_length == 192
        with pytest.raises(ContextLengthExceeded, match="192 tokens"):
            add(small, 1, (3,) * 192)
        grown = generate(small, "a", max_tokens=500)
        assert grown.finish == "length"
        assert 100 < grown.tokens <= 191

    def test_several_that_exceed_it_together_all_finish(self, small: GenAIEngine) -> None:
        queued = Queued(small)
        for id_ in range(8):
            queued.add(id_, "a", max_tokens=60)
        results = queued.run().values()
        assert [(result.finish, result.tokens) for result in results] == [("length", 60)] * 8
        assert queued.most > 1


@pytest.mark.parametrize(("options", "expected"), [({"cache_size": 1}, 4096), ({"num_kv_blocks": 5}, 160)])
def test_the_context_is_bounded_by_a_cache_that_is_smaller(
    pair: tuple[str, DraftSpec], options: dict[str, int], expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = GenAIEngine(TextSpec(pair[0], **options))
    assert engine.facts.max_length == expected
    said = "the KV cache holds 160 tokens, and a request could take 4096" in capsys.readouterr().err
    assert said is (expected == 160)


def test_a_draft_of_another_tokenizer_is_a_load_error(pair: tuple[str, DraftSpec], short_model: Path) -> None:
    with pytest.raises(LoadError, match="Tokenizers for draft and main models are different") as caught:
        GenAIEngine(TextSpec(pair[0], draft=DraftSpec(str(short_model))))
    assert caught.value.field == "draft_models_path"
