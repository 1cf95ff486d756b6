"""The log-probabilities of an echoed prompt beside a prefix cache and beside other requests: the same, and as
many, as without."""

from __future__ import annotations

import pytest

from ovserve.engine.backends.genai import GenAIEngine
from ovserve.engine.backends.genai.quirks.uncached import UPPER, Uncached
from ovserve.engine.backends.genai.text import ids_tensor
from ovserve.engine.protocol.messages import Add, StepItem
from ovserve.engine.protocol.specs import TextSpec
from ovserve.engine.worker.admission_queue import AdmissionQueue
from ovserve.errors import InvalidArgument, Unavailable
from ovserve.llm.request import Sampling
from tests.engine.real import EXACT, FRANCE, LIST, STORY, Result, add, generate, run

pytestmark = pytest.mark.long

PROMPTS = (LIST * 6, LIST * 2, STORY, "a")
SCORED = {"echo": True, "logprobs": True}


@pytest.fixture(scope="module")
def plain(model_path: str) -> GenAIEngine:
    return GenAIEngine(TextSpec(model_path, properties=EXACT))


@pytest.fixture(scope="module")
def caching(model_path: str) -> GenAIEngine:
    return GenAIEngine(TextSpec(model_path, properties=EXACT, enable_prefix_caching=True))


def same(found: Result, expected: Result) -> None:
    assert found.text == expected.text
    assert found.logprobs[0] is None  # nothing is before it
    assert None not in found.logprobs[1:]
    assert found.logprobs[1:] == pytest.approx(expected.logprobs[1:], abs=1e-3)


@pytest.mark.parametrize("tokens", [0, 3])
def test_the_same_as_without_a_cache(plain: GenAIEngine, caching: GenAIEngine, tokens: int) -> None:
    for prompt in PROMPTS:
        expected = generate(plain, prompt, max_tokens=tokens, **SCORED)
        for _ in range(2):
            generate(caching, prompt, max_tokens=2)  # now the cache has it
            same(generate(caching, prompt, max_tokens=tokens, **SCORED), expected)


def asked(id_: int, prompt: str, **sampling: object) -> Add:
    return Add(id_, prompt, False, Sampling(**{"temperature": 0.0, "max_tokens": 12, **sampling}))  # type: ignore[arg-type]


def served(engine: GenAIEngine, arrivals: list[list[Add]]) -> dict[int, Result]:
    """As the loop of `worker.py` does it: each list comes before another step."""
    results: dict[int, Result] = {}
    turns = AdmissionQueue(engine)
    while arrivals or engine.busy or turns.waiting:
        turns.begin()
        for message in turns.take(arrivals.pop(0) if arrivals else []):
            assert isinstance(message, Add)
            engine.add(message, turns.encoded(message))
        if engine.busy:
            engine.step()
        for word in engine.collect():
            assert isinstance(word, StepItem), word
            results.setdefault(word.id, Result()).take(word)
    return results


BOTH = pytest.mark.parametrize("which", ["plain", "caching"])


@BOTH
def test_beside_others_that_use_the_cache(request: pytest.FixtureRequest, which: str) -> None:
    """Whether they decode, are being read, or come later; whether a step reads the prompt whole or cuts it."""
    engine: GenAIEngine = request.getfixturevalue(which)
    prompts = (LIST * 6, STORY, LIST * 12, STORY * 2)
    alone = [generate(engine, prompt, max_tokens=2, **SCORED) for prompt in prompts]
    others = generate(engine, FRANCE, max_tokens=12).text
    arrivals: list[list[Add]] = [[asked(1, FRANCE), asked(2, LIST * 6)], [], [asked(3, LIST * 12)], []]
    for n, prompt in enumerate(prompts):
        arrivals.append([asked(10 + 2 * n, prompt, max_tokens=2, **SCORED), asked(11 + 2 * n, FRANCE)])
    found = served(engine, arrivals)
    assert len(found) == 11
    for n, expected in enumerate(alone):
        same(found[10 + 2 * n], expected)
        assert found[11 + 2 * n].text == others


def test_many_of_them_share_a_step(caching: GenAIEngine) -> None:
    prompts = [f"{n} {STORY}" for n in range(8)]
    alone = [generate(caching, prompt, max_tokens=0, **SCORED) for prompt in prompts]
    first, *later = [asked(n, prompt, max_tokens=0, **SCORED) for n, prompt in enumerate(prompts)]
    found = served(caching, [[asked(100, FRANCE, max_tokens=3), first, *later]])
    for n, expected in enumerate(alone):
        same(found[n], expected)
    turns = AdmissionQueue(caching)
    together = 0
    for message in turns.take([first, *later]):
        assert isinstance(message, Add)
        caching.add(message, turns.encoded(message))
        together += 1
    run(caching)
    assert together >= 5  # 256 tokens are a step


def test_the_engine_takes_none_behind_another(caching: GenAIEngine) -> None:
    add(caching, 1, FRANCE)
    with pytest.raises(Unavailable, match="echo with logprobs"):
        add(caching, 2, FRANCE, **SCORED)
    assert set(run(caching)) == {1}


def test_why_they_come_first(plain: GenAIEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """To be removed together with `echo_order.py` when the library counts the rows of the others."""
    expected = generate(plain, LIST, max_tokens=2, **SCORED).logprobs[1:]
    monkeypatch.setattr("ovserve.engine.backends.genai.loaded.EchoOrder.can_schedule", lambda *_, **__: True)
    add(plain, 1, FRANCE)
    add(plain, 2, LIST, max_tokens=2, **SCORED)
    assert run(plain)[2].logprobs[1:] != pytest.approx(expected, abs=1e-2)


def test_others_keep_using_the_cache(caching: GenAIEngine) -> None:
    generate(caching, LIST * 6)
    assert add(caching, 1, LIST * 6, **SCORED).cached_tokens == 0
    assert run(caching)[1].text.startswith(LIST * 6)
    accepted = add(caching, 2, LIST * 6)
    assert (accepted.cached_tokens or 0) >= accepted.prompt_tokens - 1  # its own name is still there
    assert run(caching)[2].finish
    assert caching._accounts.prefix is not None  # the account agrees with the library


def test_token_ids_come_back_as_they_were(caching: GenAIEngine) -> None:
    ids = tuple(caching.tokenize((STORY,), add_special_tokens=False)[0])
    add(caching, 1, ids, max_tokens=0, **SCORED)
    texts: list[str] = []
    while caching.busy:
        caching.step()
        for item in caching.collect():
            texts += [token.text for token in item.logprobs or ()]  # type: ignore[union-attr]
    assert "".join(texts) == STORY


def test_a_repetition_penalty_is_refused_but_where_it_has_no_effect(caching: GenAIEngine) -> None:
    with pytest.raises(InvalidArgument, match=r"repetition_penalty: 1\.3 is not possible"):
        add(caching, 1, FRANCE, repetition_penalty=1.3, **SCORED)
    assert None not in generate(caching, FRANCE, repetition_penalty=1.3, max_tokens=0, **SCORED).logprobs[1:]
    assert generate(caching, FRANCE, repetition_penalty=1.3, echo=True).text


def test_an_engine_that_cannot_refuses(model_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Uncached, "renamed", lambda self, ids: ids)  # as if the cache knew it all the same
    engine = GenAIEngine(TextSpec(model_path, enable_prefix_caching=True))
    with pytest.raises(InvalidArgument, match="cannot compute the log-probabilities"):
        add(engine, 1, FRANCE, **SCORED)


def test_names_are_not_used_twice() -> None:
    uncached, ids = Uncached(), ids_tensor((7, 8))
    names = [uncached.renamed(ids).data[0].tolist() for _ in range(3)]
    assert len({first for first, _ in names}) == 3
    assert all(first % UPPER == 7 and first != 7 for first, _ in names)
    assert ids.data[0].tolist() == [7, 8]
