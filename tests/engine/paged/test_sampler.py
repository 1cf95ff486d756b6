"""Choosing tokens: what is drawn follows the distribution that a plain computation of it gives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovserve.kinds.text.worker.paged import sampler
from ovserve.kinds.text.worker.paged.sampler import Choice, Row, _before
from ovserve.llm.request import Sampling

VOCABULARY = 5000
DRAWS = 4000


def logits(seed: int = 0, spread: float = 3.0) -> Row:
    return np.random.default_rng(seed).normal(0, spread, VOCABULARY).astype(np.float32)


def distribution(row: Row, sampling: Sampling) -> np.ndarray[Any, np.dtype[np.float64]]:
    """With a sort of the whole vocabulary."""
    scaled = row.astype(np.float64) / sampling.temperature
    chances = np.exp(scaled - scaled.max())
    if sampling.top_k is not None:
        chances[np.argsort(-chances, kind="stable")[sampling.top_k :]] = 0
    if sampling.min_p:
        chances[chances < sampling.min_p] = 0
    chances /= chances.sum()
    if sampling.top_p < 1:
        order = np.argsort(-chances, kind="stable")
        count = int(chances[order].cumsum().searchsorted(sampling.top_p)) + 1
        chances[order[count:]] = 0
        chances /= chances.sum()
    return chances


@pytest.mark.parametrize(
    ("narrow", "temperature"),
    [
        *(({}, temperature) for temperature in (0.2, 0.7, 1.0, 2.0)),
        *(
            (narrow, temperature)
            for temperature in (0.7, 2.0)
            for narrow in (
                {"top_p": 0.9},
                {"top_p": 0.3},
                {"top_k": 50},
                {"min_p": 0.05},
                {"top_p": 0.9, "top_k": 40},
                {"min_p": 0.001, "top_p": 0.95},
                {"min_p": 0.02, "top_k": 2000},
            )
        ),
    ],
)
def test_draws_follow_the_distribution(narrow: dict[str, Any], temperature: float) -> None:
    row, sampling = logits(), Sampling(temperature=temperature, seed=1, **narrow)
    expected = distribution(row, sampling)
    choice = Choice(sampling, (), ())
    drawn = np.array([choice.choose(row)[0] for _ in range(DRAWS)])
    assert expected[drawn].min() > 0
    # Twenty groups of about the same probability, the most likely tokens first.
    order = np.argsort(-expected)
    groups = np.zeros(VOCABULARY, int)
    groups[order] = np.minimum((expected[order].cumsum() * 20).astype(int), 19)
    hoped = DRAWS * np.bincount(groups, expected, 20)
    seen = np.bincount(groups[drawn], minlength=20)
    large = hoped >= 10
    chi_square = ((seen - hoped)[large] ** 2 / hoped[large]).sum()
    freedom = max(int(large.sum()) - 1, 1)
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


@given(st.integers(0, 1000), st.sampled_from([0.01, 0.3, 1.0, 5.0]), st.sampled_from([1, 3, 20, VOCABULARY]))
def test_the_best_are_those_of_a_sort(seed: int, spread: float, count: int) -> None:
    row = np.round(logits(seed, spread), 1)  # with many equal ones
    sampling = Sampling(temperature=0.0, logprobs=True, top_logprobs=count)
    token, scored = Choice(sampling, (), ()).choose(row)
    assert scored is not None
    order = np.argsort(-row, kind="stable")[:count]
    assert [id_ for id_, _ in scored.top] == order.tolist()
    total = float(np.log(np.exp(row.astype(np.float64)).sum()))
    assert token == order[0]
    assert scored.logprob == pytest.approx(float(row[token]) - total, abs=1e-4)
    assert [value for _, value in scored.top] == pytest.approx((row[order] - total).tolist(), abs=1e-4)


@given(
    st.lists(st.integers(0, 30), max_size=40),
    st.lists(st.integers(0, 30), max_size=200),
    st.sampled_from([1.0, 0.8, 1.3]),
    st.sampled_from([0.0, 0.7, -0.5]),
    st.sampled_from([0.0, 1.1]),
)
def test_penalties(
    prompt: list[int], answer: list[int], repetition: float, frequency: float, presence: float
) -> None:
    sampling = Sampling(
        temperature=0.0,
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
    )
    choice, row = Choice(sampling, prompt, ()), logits(3)[:31].copy()
    for token in answer:
        choice.append(token)
    expected = row.astype(np.float64)
    for id_ in {*prompt, *answer}:
        expected[id_] = expected[id_] / repetition if expected[id_] > 0 else expected[id_] * repetition
    for id_ in set(answer):
        expected[id_] -= frequency * answer.count(id_) + presence
    choice.choose(row)
    assert row.tolist() == pytest.approx(expected.tolist(), abs=1e-4)


def test_log_probabilities_are_of_the_model_alone() -> None:
    row = logits()
    best, other = (int(id_) for id_ in np.argsort(-row)[:2])
    plain = Choice(Sampling(temperature=0.0, logprobs=True), (), ()).choose(row.copy())
    biased = Sampling(temperature=0.0, logprobs=True, top_logprobs=1, logit_bias=((best, -100.0),))
    token, scored = Choice(biased, (), ()).choose(row.copy())
    assert plain[0] == best
    assert token == other
    assert scored is not None
    assert scored.top[0][0] == best
    assert scored.logprob < scored.top[0][1]


def test_stop_tokens_are_forbidden_until_the_minimum() -> None:
    row = logits()
    end = int(row.argmax())
    choice = Choice(Sampling(temperature=0.0, min_tokens=2), (), (end,))
    for _ in range(2):
        token, _scored = choice.choose(row.copy())
        assert token != end
        choice.append(token)
    assert choice.choose(row.copy())[0] == end


def test_nothing_allowed_is_told() -> None:
    assert Choice(Sampling(), (), ()).choose(np.full(100, -np.inf, np.float32)) == (-1, None)


def test_a_seed_repeats() -> None:
    def draw(seed: int) -> list[int]:
        choice = Choice(Sampling(temperature=1.0, seed=seed, top_p=0.9), (), ())
        return [choice.choose(logits(at))[0] for at in range(20)]

    assert draw(5) == draw(5) != draw(6)


def test_a_small_top_p_takes_few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 50,000 tokens of about the same probability, a draw is within top_p once in 2,000 times."""
    tries: list[int] = []

    def before(chances: Row, token: int) -> float:
        tries.append(token)
        return _before(chances, token)

    monkeypatch.setattr(sampler, "_before", before)
    row = np.random.default_rng(0).normal(0, 0.3, 49_152).astype(np.float32)
    best = set(np.argsort(-row)[:100].tolist())
    choice = Choice(Sampling(temperature=2.0, top_p=5e-4, seed=1), (), ())
    drawn = [choice.choose(row.copy())[0] for _ in range(20)]
    assert set(drawn) <= best
    assert len(set(drawn)) > 3
    assert len(tries) <= 20 * 8
