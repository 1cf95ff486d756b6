"""How large a request is, and when a refused client is told to come again."""

from __future__ import annotations

import pytest

from ovserve.engine.admission.text import DEFAULT_ANSWER_TOKENS, ThroughputEstimator
from ovserve.engine.client.requests import RequestTimeline
from ovserve.telemetry.metrics import RequestMetrics


def test_text_is_measured_by_the_prompts_before() -> None:
    pace = ThroughputEstimator(RequestMetrics())
    assert pace.tokens_of(("x" * 400,)) == 100, "four characters a token, to begin with"
    for _ in range(100):
        pace.record_prompts(("x" * 400,), 200)
    assert pace.tokens_of(("x" * 400,)) == pytest.approx(200, abs=2)
    assert pace.tokens_of(((1, 2, 3), (4, 5))) == 5, "token ids are what they are"
    assert pace.tokens_of(("",)) == 1


def test_images_are_measured_by_those_before() -> None:
    pace = ThroughputEstimator(RequestMetrics())
    assert pace.tokens_of(("x" * 400,), 2) == 100 + 2 * 576
    for _ in range(100):
        pace.record_prompts(("x" * 400,), 100 + 2 * 50, 2)
    assert pace.tokens_of(("x" * 400,), 2) == pytest.approx(200, abs=2)
    assert pace.tokens_of(("x" * 400,)) == 100, "text is what it was"


def test_nothing_is_known_at_first() -> None:
    pace = ThroughputEstimator(RequestMetrics())
    assert pace.seconds(1000, now=0) is None
    assert pace.answer_tokens == DEFAULT_ANSWER_TOKENS


def test_the_pace_is_that_of_busy_times() -> None:
    meter = RequestMetrics()
    pace = ThroughputEstimator(meter)
    pace.sample(100.0, busy=True)
    meter.prompt_tokens += 300
    meter.generated_tokens += 200
    assert pace.seconds(1000, now=105.0) == pytest.approx(10), "500 tokens in 5 s"
    pace.sample(105.0, busy=True)
    for second in range(106, 200):  # from now on 10 tokens a second
        meter.generated_tokens += 10
        pace.sample(float(second), busy=True)
    assert pace.seconds(1000, now=199.0) == pytest.approx(100, rel=0.05), "the old pace is forgotten"


def test_before_anybody_waited_it_is_that_of_those_who_run() -> None:
    meter = RequestMetrics()
    tracks = [RequestTimeline(meter, 0.0) for _ in range(4)]
    for track in tracks:
        track.admitted(10, 0.0)
        for step in range(1, 12):
            track.on_tokens(1, None, step * 0.1)
    assert ThroughputEstimator(meter).seconds(400, now=2.0) == pytest.approx(10), (
        "4 choices of 10 tokens a second"
    )


def test_an_answer_is_as_long_as_answers_are() -> None:
    meter = RequestMetrics()
    for tokens in (10, 30):
        track = RequestTimeline(meter, 0.0)
        track.on_tokens(tokens, "stop", 1.0)
        track.finish(1.0)
    assert ThroughputEstimator(meter).answer_tokens == 20
