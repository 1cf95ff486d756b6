"""The log-probabilities of an echoed prompt beside a prefix cache: the same, and as many, as without one."""

from __future__ import annotations

import pytest

from ovserve.engine.backends.genai import GenAIEngine
from ovserve.engine.backends.genai.quirks.uncached import UPPER, Uncached
from ovserve.engine.backends.genai.text import ids_tensor
from ovserve.engine.protocol.specs import TextSpec
from ovserve.errors import InvalidArgument
from tests.engine.real import EXACT, FRANCE, LIST, STORY, Result, add, generate, run

PROMPTS = (FRANCE, LIST * 6, LIST * 2, STORY, "a", LIST * 6)
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


@pytest.mark.parametrize("tokens", [0, 6])
def test_the_same_as_without_a_cache(plain: GenAIEngine, caching: GenAIEngine, tokens: int) -> None:
    for prompt in PROMPTS:
        expected = generate(plain, prompt, max_tokens=tokens, **SCORED)
        for _ in range(2):
            generate(caching, prompt, max_tokens=2)  # now the cache has it
            same(generate(caching, prompt, max_tokens=tokens, **SCORED), expected)


def test_others_keep_using_the_cache(caching: GenAIEngine) -> None:
    generate(caching, LIST * 6)
    assert add(caching, 1, LIST * 6, **SCORED).cached_tokens == 0
    assert run(caching)[1].text.startswith(LIST * 6)
    accepted = add(caching, 2, LIST * 6)
    assert (accepted.cached_tokens or 0) >= accepted.prompt_tokens - 1  # its own name is still there
    assert run(caching)[2].text
    assert caching._prefix is not None  # the account agrees with the library


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
