"""How much of a prompt is still to be computed, estimated from the prompts before."""

from __future__ import annotations

from ovserve.kinds.text.worker.genai.stateful import PrefillEstimate


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def read(estimate: PrefillEstimate, clock: Clock, tokens: int, seconds: float) -> None:
    estimate.begin(tokens)
    clock.now += seconds
    estimate.end()


def test_the_first_prompt_has_no_estimate() -> None:
    clock = Clock()
    estimate = PrefillEstimate(clock)
    assert estimate.remaining_tokens() is None
    estimate.begin(1000)
    clock.now += 1
    assert estimate.remaining_tokens() is None


def test_the_second_falls_with_time_and_never_to_nothing() -> None:
    clock = Clock()
    estimate = PrefillEstimate(clock)
    read(estimate, clock, 1000, 2.0)
    assert estimate.remaining_tokens() is None, "nothing is being computed"
    estimate.begin(2000)
    assert estimate.remaining_tokens() == 2000
    clock.now += 1
    assert estimate.remaining_tokens() == 1500
    clock.now += 100
    assert estimate.remaining_tokens() == 60
    estimate.end()
    assert estimate.remaining_tokens() is None
    estimate.begin(1)
    clock.now += 1
    assert estimate.remaining_tokens() == 1


def test_a_long_prompt_tells_more_than_a_short_one() -> None:
    """A short one is mostly overhead: 10 tokens at 100 per second."""
    clock = Clock()
    estimate = PrefillEstimate(clock)
    read(estimate, clock, 10, 0.1)
    read(estimate, clock, 5000, 5.0)
    read(estimate, clock, 10, 0.1)
    estimate.begin(1000)
    clock.now += 0.5
    remaining = estimate.remaining_tokens()
    assert remaining is not None
    assert 500 <= remaining < 530


def test_a_prompt_without_an_answer_teaches_nothing() -> None:
    clock = Clock()
    estimate = PrefillEstimate(clock)
    read(estimate, clock, 1000, 1.0)
    estimate.begin(10)
    clock.now += 60  # it was aborted
    read(estimate, clock, 1000, 1.0)
    estimate.begin(1000)
    clock.now += 0.5
    assert estimate.remaining_tokens() == 500
