"""A draft model in the paged engine: tiny models, of which the draft errs at known places, and the default model
as its own draft. Texts are compared with those of the same engine without a draft."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ovserve.engine.protocol.messages import Compiled, StepItem
from ovserve.engine.protocol.specs import DraftSpec, PagedTextSpec
from ovserve.errors import LoadError
from ovserve.kinds.text.worker.paged import PagedEngine
from ovserve.llm.grammar.constraint import constrain, literal, structural_tag
from tests.engine import tiny
from tests.engine.real import EXACT, FRANCE, LIST, add, generate, run

pytestmark = pytest.mark.long

REPEATS = "abcdefghijklmnop1234567abc"
ERRS = {"e": "z", "p": "a", "3": "9", **dict.fromkeys(tiny.ENDING, "A")}  # where the draft is wrong
LONG = tiny.ENDLESS * 4


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, DraftSpec]:
    place = tmp_path_factory.mktemp("pair")
    draft = tiny.write_openvino(place / "draft", tiny.table() | ERRS)
    return tiny.write_openvino(place / "main", tiny.table()), DraftSpec(draft)


@pytest.fixture(scope="module")
def plain(pair: tuple[str, DraftSpec]) -> PagedEngine:
    return PagedEngine(PagedTextSpec(pair[0], enable_prefix_caching=True))


@pytest.fixture(scope="module")
def drafting(pair: tuple[str, DraftSpec]) -> PagedEngine:
    return PagedEngine(PagedTextSpec(pair[0], enable_prefix_caching=True, draft=pair[1]))


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [
        ("a", {}),
        (REPEATS, {}),
        ("xA", {}),
        ("xX", {"ignore_eos": True}),
        ("xA", {"min_tokens": 30}),
        (REPEATS, {"stop": ("789",)}),
        (REPEATS, {"repetition_penalty": 1.5}),
        (REPEATS, {"num_assistant_tokens": 1}),
        (REPEATS, {"num_assistant_tokens": 40}),
        (LONG, {"max_tokens": 1}),
        ("a", {"max_tokens": 2}),
        ("a", {"beams": 3}),
        ("a", {"temperature": 0.7, "seed": 4}),
    ],
)
def test_the_text_is_that_without_a_draft(
    plain: PagedEngine, drafting: PagedEngine, prompt: str, sampling: dict[str, Any]
) -> None:
    expected = generate(plain, prompt, **sampling)
    result = generate(drafting, prompt, **sampling)
    assert (result.text, result.finish) == (expected.text, expected.finish)


def test_of_a_draft_everything_up_to_its_first_error_is_kept(drafting: PagedEngine) -> None:
    result = generate(drafting, "xf", max_tokens=11, num_assistant_tokens=4)  # g, then the draft: h to k
    assert result.text == "ghijklmnopq"
    # hijk are right. Then l comes from the model, and mnop from the draft, which errs after p.
    assert (result.drafted, result.accepted) == (8, 8)
    result = generate(drafting, "xn", max_tokens=8, num_assistant_tokens=4)
    assert result.text == "opqrstuv"
    # o is the prompt's. Of p a b c the first is right, then q comes from the model, and r s t u are right.
    assert (result.drafted, result.accepted) == (8, 5)


def test_a_request_may_refuse_drafts(drafting: PagedEngine) -> None:
    result = generate(drafting, "a", num_assistant_tokens=0)
    assert result.drafted == 0
    assert result.reads == [1] * 40
    assert generate(drafting, "a").accepted > 20


def test_a_grammar_holds(drafting: PagedEngine) -> None:
    format_ = constrain(literal("cdeXYZ"), "x").format
    drafting.grammars.compile(7, structural_tag(format_))
    while not (compiled := drafting.grammars.compiled()):
        pass
    assert isinstance(compiled[0], Compiled)
    assert generate(drafting, "ab", constraint=constrain(literal("cdeXYZ"), "x")).text == "cdeXYZ"


def test_neighbours_and_aborts(plain: PagedEngine, drafting: PagedEngine) -> None:
    prompts = {i: REPEATS[: 3 + i] for i in range(20)}
    for engine in (plain, drafting):
        for id_, prompt in prompts.items():
            add(engine, id_, prompt, max_tokens=30)
            if id_ == 11:
                engine.step()
                engine.abort(3)
    expected, found = run(plain), run(drafting)
    assert {id_: one.text for id_, one in found.items() if id_ != 3} == {
        id_: one.text for id_, one in expected.items() if id_ != 3
    }
    pool = drafting._scheduler.pool
    assert pool.available == pool.size


def test_a_preempted_request_takes_its_draft_with_it(pair: tuple[str, DraftSpec], plain: PagedEngine) -> None:
    small = PagedEngine(PagedTextSpec(pair[0], num_kv_blocks=6, draft=pair[1]))
    for id_ in range(8):
        add(small, id_, "a", max_tokens=60)
    found = run(small)
    expected = generate(plain, "a", max_tokens=60).text
    assert [(one.text, one.finish) for one in found.values()] == [(expected, "length")] * 8
    assert small._scheduler.pool.available == 6


def test_a_long_prompt_in_parts_and_from_the_cache(pair: tuple[str, DraftSpec], plain: PagedEngine) -> None:
    engine = PagedEngine(
        PagedTextSpec(pair[0], max_num_batched_tokens=16, enable_prefix_caching=True, draft=pair[1])
    )
    expected = generate(plain, LONG, max_tokens=20)
    first = generate(engine, LONG, max_tokens=20)
    cached = add(engine, 2, LONG, max_tokens=20).cached_tokens
    again = run(engine)[2]
    assert cached == (len(LONG) - 1) // 32 * 32
    assert first.text == again.text == expected.text
    assert first.accepted == again.accepted > 10


def test_the_distribution_is_that_of_the_model(plain: PagedEngine, drafting: PagedEngine) -> None:
    """One token has a peak in each row, and all others are equal, so each token is the peak's with the same
    probability. The draft always proposes a peak; taking it for granted, or never, would show."""
    temperature, samples, length = 3.0, 800, 3
    peak = max(logprobs(plain, 0, temperature=0.0, max_tokens=1))
    rest = math.log1p(-math.exp(peak)) - math.log(tiny.WIDTH - 1)
    weight = math.exp((peak - rest) / temperature)
    likely = weight / (weight + tiny.WIDTH - 1)
    counts: Counter[tuple[bool, ...]] = Counter()
    for seed in range(samples):
        found = logprobs(drafting, seed, temperature=temperature, max_tokens=length, ignore_eos=True)
        assert len(found) == length
        counts[tuple(each > (peak + rest) / 2 for each in found)] += 1
    chances = {
        outcome: math.prod(likely if hit else 1 - likely for hit in outcome)
        for outcome in ((a, b, c) for a in (True, False) for b in (True, False) for c in (True, False))
    }
    square = sum((counts[o] - samples * p) ** 2 / (samples * p) for o, p in chances.items())
    assert square < 24.3, (square, likely, counts)  # seven degrees of freedom: one of 1,000 is above


def logprobs(engine: PagedEngine, seed: int, **sampling: Any) -> list[float]:
    add(engine, 1, "xa", seed=seed, logprobs=True, skip_special_tokens=False, **sampling)
    found: list[float] = []
    while engine.busy:
        engine.step()
        for item in engine.collect():
            assert isinstance(item, StepItem)
            found += [token.logprob for token in item.logprobs or () if token.logprob is not None]
    return found


def test_a_model_as_its_own_draft(short_model: Path) -> None:
    spec = PagedTextSpec(str(short_model), properties=EXACT)
    plain = PagedEngine(spec)
    plain.wait_for_forms()  # their thread has less priority, and would hold up the next load
    drafting = PagedEngine(PagedTextSpec(spec.model_path, properties=EXACT, draft=DraftSpec(spec.model_path)))
    for prompt in (FRANCE, LIST):
        expected, result = (
            generate(engine, prompt, max_tokens=24, ignore_eos=True) for engine in (plain, drafting)
        )
        assert result.text == expected.text
        assert result.accepted == result.drafted > 0


def test_a_draft_of_another_tokenizer_is_a_load_error(pair: tuple[str, DraftSpec], short_model: Path) -> None:
    with pytest.raises(LoadError, match="tokenizers of the draft model and of the model differ") as caught:
        PagedEngine(PagedTextSpec(pair[0], draft=DraftSpec(str(short_model))))
    assert caught.value.field == "draft_models_path"


def test_both_caches_share_the_memory(pair: tuple[str, DraftSpec]) -> None:
    whole = PagedEngine(PagedTextSpec(pair[0], cache_size=1))._model.blocks
    assert PagedEngine(PagedTextSpec(pair[0], cache_size=1, draft=pair[1]))._model.blocks == whole // 2
    own = DraftSpec(pair[1].model_path, cache_size=1)
    assert PagedEngine(PagedTextSpec(pair[0], cache_size=1, draft=own))._model.blocks == whole
