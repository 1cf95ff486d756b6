"""An EAGLE3 head in the real engine, a tiny one (`eagle.py`): the text of plain decoding, constraints kept, counts
right; and what each refusal of llm/decoding.py spares the client, shown on the library itself."""

from __future__ import annotations

from typing import Any

import pytest

from ovserve.engine.protocol.specs import DraftSpec, TextSpec
from ovserve.errors import InvalidArgument, LoadError
from ovserve.kinds.text.worker.genai import GenAIEngine
from ovserve.llm.grammar import constraint as c
from tests.engine import eagle, tiny
from tests.engine.real import add, bare_ids, generate, run
from tests.engine.test_pair import ERRS, REPEATS

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, DraftSpec]:
    directory = tmp_path_factory.mktemp("eagle3")
    main, head = directory / "main", directory / "head"
    eagle.make(main, head, tiny.table(), tiny.table() | ERRS)
    return str(main), DraftSpec(str(head), eagle3=True)


@pytest.fixture(scope="module")
def plain(pair: tuple[str, DraftSpec]) -> GenAIEngine:
    return GenAIEngine(TextSpec(pair[0]))


@pytest.fixture(scope="module")
def drafted(pair: tuple[str, DraftSpec]) -> GenAIEngine:
    return GenAIEngine(TextSpec(pair[0], draft=pair[1]))


def bare(engine: GenAIEngine, prompt: str, **settings: Any) -> str:
    """What the library answers without our rules."""
    if engine._mode == "eagle3":
        settings.setdefault("num_assistant_tokens", 5)
    return engine.text.decode([bare_ids(engine, prompt, **settings)])[0]


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [
        (REPEATS, {}),
        ("ab", {}),
        ("xA", {}),
        ("xX", {"ignore_eos": True}),
        (REPEATS, {"stop": ("789",)}),
        (REPEATS, {"stop_token_ids": (64,)}),
        (REPEATS, {"echo": True}),
        (REPEATS, {"repetition_penalty": 1.5}),
        (REPEATS, {"max_tokens": 1}),
        (REPEATS, {"max_tokens": 2}),
        (REPEATS, {"num_assistant_tokens": 1}),
        (REPEATS, {"num_assistant_tokens": 64}),
    ],
)
def test_greedy_text_is_that_of_plain_decoding(
    plain: GenAIEngine, drafted: GenAIEngine, prompt: str, sampling: dict[str, Any]
) -> None:
    expected, got = generate(plain, prompt, **sampling), generate(drafted, prompt, **sampling)
    assert (got.text, got.finish) == (expected.text, expected.finish)
    assert got.tokens == expected.tokens or "stop" in sampling  # the step behind the cut counts


def test_what_was_drafted_and_accepted_is_counted(drafted: GenAIEngine) -> None:
    result = generate(drafted, REPEATS)
    assert result.tokens == 40
    assert result.accepted == result.tokens - len(result.reads)
    assert 0 < result.accepted < result.drafted <= 5 * len(result.reads)


def test_neighbours_and_aborts(drafted: GenAIEngine) -> None:
    alone = generate(drafted, REPEATS).text
    add(drafted, 1, REPEATS)
    add(drafted, 2, "ab", max_tokens=200)
    drafted.step()
    drafted.abort(2)
    add(drafted, 3, REPEATS)
    results = run(drafted)
    assert (results[1].text, results[3].text) == (alone, alone)


@pytest.mark.parametrize("pattern", ["[0-9]{3}", "([a-d]{4}|x){5}z", "(abc|def){6}", "(abcx){6}"])
def test_constraints_are_enforced(plain: GenAIEngine, drafted: GenAIEngine, pattern: str) -> None:
    """Also against what is drafted: the free answer goes on with d, the last grammar wants x now and then."""
    texts = []
    for engine in (plain, drafted):
        constraint = c.constrain(c.regex(pattern), "x")
        engine.grammars.compile(-1, c.structural_tag(constraint.format))
        while not engine.grammars.compiled():
            pass
        texts.append(generate(engine, REPEATS, constraint=constraint).text)
    assert texts[0] == texts[1] != ""


class TestRefused:
    def test_a_prompt_of_one_token_since_the_library_raises(self, drafted: GenAIEngine) -> None:
        with pytest.raises(InvalidArgument, match="The prompt has 1 token; an EAGLE3 draft begins with"):
            add(drafted, 1, "a")
        with pytest.raises(RuntimeError, match="shape is invalid"):
            bare(drafted, "a")
        assert generate(drafted, "ab", max_tokens=3).text == "cde"

    def test_beams_since_the_library_raises(self, drafted: GenAIEngine) -> None:
        with pytest.raises(InvalidArgument, match="best_of: 4 is not possible with an EAGLE3 draft"):
            add(drafted, 1, REPEATS, beams=4, n=2)
        with pytest.raises(RuntimeError, match="not compatible with assistant generation"):
            bare(drafted, REPEATS, num_beams=3)

    def test_min_tokens_since_the_library_forgets_them(
        self, plain: GenAIEngine, drafted: GenAIEngine
    ) -> None:
        with pytest.raises(InvalidArgument, match="min_tokens: 30 is not possible with an EAGLE3 draft"):
            add(drafted, 1, REPEATS, min_tokens=30)
        assert bare(plain, "xA", min_new_tokens=30).startswith(tiny.ENDING[1:] + "!")
        prompt = "".join(f"{letter}ab" for letter in tiny.ENDING) + "A"
        assert bare(drafted, prompt, min_new_tokens=30) == tiny.ENDING[1:] + tiny.END

    def test_temperature_since_the_errors_of_the_draft_pass(
        self, plain: GenAIEngine, drafted: GenAIEngine
    ) -> None:
        """Drawing from one candidate is greedy decoding, and plain decoding has it so."""
        with pytest.raises(InvalidArgument, match="temperature: 0.5 is not possible with an EAGLE3 draft"):
            add(drafted, 1, REPEATS, temperature=0.5)
        drawn = {"do_sample": True, "temperature": 1.0, "top_k": 1}
        assert bare(plain, "ab", **drawn) == bare(plain, "ab") == bare(drafted, "ab")
        assert "ez" in bare(drafted, "ab", **drawn)


def test_a_directory_that_is_no_head_is_a_load_error(pair: tuple[str, DraftSpec]) -> None:
    with pytest.raises(LoadError) as caught:
        GenAIEngine(TextSpec(pair[0], draft=DraftSpec(pair[0], eagle3=True)))
    assert caught.value.field == "draft_models_path"
