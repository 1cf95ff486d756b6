"""DRY and XTC against their published definitions, computed here token by token without any of the engine's code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ovserve.engine.protocol.specs import DraftSpec, PagedTextSpec
from ovserve.kinds.text.worker.paged import PagedEngine, sampler
from ovserve.kinds.text.worker.paged.sampler import Choice, DryPenalty
from ovserve.llm.request import Dry, ReasoningBudget, Sampling
from tests.engine.real import EXACT, LIST, generate

TEXTS = [*b"abc.:\n"]  # the token of an id is one character, of the last two several
TOKENS = [bytes([byte]) for byte in TEXTS] + [b"a\nb", b"b:"]
LETTERS = st.lists(st.integers(0, len(TOKENS) - 1), max_size=60)


def dry_penalties(ids: list[int], dry: Dry) -> dict[int, float]:
    """Apply the definition of https://github.com/oobabooga/text-generation-webui/pull/5677: for every earlier place
    of the last tokens, the number of equal tokens before both, which ends at a breaker."""
    window = ids if dry.penalty_last_n < 0 else ids[max(len(ids) - dry.penalty_last_n, 0) :]
    text, ends = b"".join(TOKENS[id_] for id_ in ids), np.cumsum([len(TOKENS[id_]) for id_ in ids])
    found: dict[int, float] = {}
    for place in range(len(window) - 1):
        length = 0
        while length <= place and window[place - length] == window[-1 - length]:
            since = int(ends[len(ids) - length - 2]) if length + 2 <= len(ids) else 0
            if any(_crosses(text, since, breaker.encode()) for breaker in dry.sequence_breakers):
                break
            length += 1
        following = window[place + 1]
        breaks = any(breaker.encode() in TOKENS[following] for breaker in dry.sequence_breakers)
        if length >= dry.allowed_length and not breaks:
            penalty = min(dry.multiplier * dry.base ** (length - dry.allowed_length), sampler.MAX_PENALTY)
            found[following] = max(found.get(following, 0), penalty)
    return found


def _crosses(text: bytes, since: int, breaker: bytes) -> bool:
    """Return whether the breaker ends within the text from `since` on."""
    return text.find(breaker, max(since - len(breaker) + 1, 0)) >= 0


@given(
    LETTERS,
    LETTERS,
    st.sampled_from([-1, 5, 20]),
    st.integers(1, 4),
    st.sampled_from([1.0, 1.75, 60.0]),
    st.sampled_from([(), ("\n",), (".", ":"), ("a:", "\n")]),
)
def test_dry_penalizes_what_its_definition_does(
    prompt: list[int], answer: list[int], last_n: int, allowed: int, base: float, breakers: tuple[str, ...]
) -> None:
    dry = Dry(0.8, base, allowed, last_n, breakers)
    penalty = DryPenalty(dry, prompt, TOKENS.__getitem__)
    for count in range(len(answer) + 1):
        row = np.random.default_rng(count).normal(0, 3, len(TOKENS)).astype(np.float32)
        expected = row.astype(np.float64)
        for id_, value in dry_penalties([*prompt, *answer[:count]], dry).items():
            expected[id_] -= value
        penalty.change(row)
        assert row.tolist() == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-3)
        if count < len(answer):
            penalty.append(answer[count])


def test_a_token_costs_one_pass_over_the_window_however_long_the_repetition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A prompt of one token, 4,000 times: places that are compared, in all."""
    compared = 0
    match = DryPenalty._match

    def counted(self: DryPenalty, end: int) -> None:
        nonlocal compared
        compared += end
        match(self, end)

    monkeypatch.setattr(DryPenalty, "_match", counted)
    penalty = DryPenalty(Dry(1.0, sequence_breakers=()), [0] * 4000, TOKENS.__getitem__)
    assert compared <= sampler.MAX_PROMPT_MATCH * 4000
    compared = 0
    penalty.append(0)
    assert compared == 4000
    row = np.zeros(len(TOKENS), np.float32)
    penalty.change(row)
    assert row[0] == -sampler.MAX_PENALTY


@pytest.mark.parametrize("narrow", [{}, {"top_k": 30}, {"top_p": 0.8}, {"min_p": 0.02}])
@pytest.mark.parametrize(
    ("probability", "threshold"), [(1.0, 0.05), (0.5, 0.1), (1.0, 0.6), (1.0, 0.02), (0.5, 0)]
)
@pytest.mark.parametrize("temperature", [0.8, 1.5])
def test_xtc_leaves_out_the_top_choices_but_the_last(
    narrow: dict[str, Any], probability: float, threshold: float, temperature: float
) -> None:
    """By https://github.com/oobabooga/text-generation-webui/pull/6335: of the tokens that the other samplers leave and
    that are as likely as the threshold or more, all but the least likely one are removed with the probability."""
    rng = np.random.default_rng(5)
    row = rng.normal(0, 1, 400).astype(np.float32)
    row[:6] += (5.5, 5.2, 5.0, 4.5, 4.0, 3.5)
    sampling = Sampling(
        temperature=temperature, seed=3, xtc_probability=probability, xtc_threshold=threshold, **narrow
    )
    chances = np.exp((row.astype(np.float64) - row.max()) / temperature)
    if "top_k" in narrow:
        chances[np.argsort(-chances)[30:]] = 0
    chances[chances < narrow.get("min_p", 0)] = 0
    chances /= chances.sum()
    if "top_p" in narrow:
        order = np.argsort(-chances)
        chances[order[int(chances[order].cumsum().searchsorted(0.8)) + 1 :]] = 0
        chances /= chances.sum()
    plain = np.where(chances > 0, np.exp(row.astype(np.float64)), 0)
    likely = np.flatnonzero((plain > 0) & (plain / plain.sum() >= threshold))
    removed = likely[np.argsort(-plain[likely])[:-1]]
    without = chances.copy()
    without[removed] = 0
    expected = (1 - probability) * chances + probability * without / without.sum()
    draws = 3000
    choice = Choice(sampling, (), ())
    drawn = np.bincount([choice.choose(row.copy())[0] for _ in range(draws)], minlength=len(row)) / draws
    assert drawn[expected == 0].sum() == 0
    top = np.argsort(-expected)[:8]
    assert np.abs(drawn[top] - expected[top]).max() < 5 * np.sqrt(0.25 / draws)
    again = Choice(sampling, (), ())
    same = [Choice(sampling, (), ()).choose(row.copy())[0], again.choose(row.copy())[0]]
    assert same[0] == same[1]


@pytest.mark.long
def test_drafts_change_no_answer_with_dry_xtc_and_a_budget_of_reasoning(short_model: Path) -> None:
    directory = str(short_model)
    budget = ReasoningBudget(6, "", ("<think>",), ("</think>",), "</think>", inside=True)
    both = {"dry": Dry(2.0), "xtc_probability": 0.5, "temperature": 0.8, "seed": 4, "max_tokens": 16}
    spec = PagedTextSpec(directory, properties=EXACT)
    from_text, from_model = PagedEngine(spec), PagedEngine(replace(spec, draft=DraftSpec(directory)))
    for case in (both, {"reasoning_budget": budget, "max_tokens": 16}):
        plain = generate(from_text, LIST, **case, num_assistant_tokens=0)
        assert generate(from_text, LIST, **case, num_assistant_tokens=8).text == plain.text
        proposed = generate(from_model, LIST, **case)
        assert proposed.text == plain.text
        assert proposed.drafted > 0
        assert ("</think>" in plain.text) == ("reasoning_budget" in case)
