"""Tests what the soak takes for growth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.soak.record import Sample
from benchmarks.soak.report import Slope, slopes, text

CALM = Sample(0.0, 60.0, 500.0, 450.0, 32.0, 7.0, 5.0, 200.0)


def found(change: Callable[[Sample], Sample], minutes: int = 60) -> dict[str, Slope]:
    """A sample every five seconds."""
    samples = [change(replace(CALM, minutes=n / 12)) for n in range(minutes * 12)]
    return {slope.series.field: slope for slope in slopes(samples)}


def grown(result: dict[str, Slope]) -> set[str]:
    return {name for name, slope in result.items() if not slope.fine}


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (lambda s: s, set()),
        (lambda s: replace(s, server_mb=60 + s.minutes * 0.3), {"server_mb"}),
        (lambda s: replace(s, embeddings_mb=200 + s.minutes, speech_mb=1000.0), {"embeddings_mb"}),
        (lambda s: replace(s, speech_mb=1000 + 10 * s.minutes), {"speech_mb"}),
        (lambda s: replace(s, server_mb=60 + min(s.minutes, 15)), set()),  # warming up
        (lambda s: replace(s, server_mb=60 + 30 * (round(s.minutes * 12) % 7 == 0)), set()),  # now and then
        (lambda s: replace(s, server_descriptors=32 + s.minutes), {"server_descriptors"}),
        (lambda s: replace(s, engine_mb=500 + s.minutes * 10), set()),  # its cache
        (lambda s: replace(s, engine_beside_cache_mb=450 + s.minutes * 5), set()),  # the library's kernels
        (lambda s: replace(s, server_cpu_ms=5 + s.minutes / 5), {"server_cpu_ms"}),
        (lambda s: replace(s, latency_ms=200 + s.minutes * 90), set()),  # others use the machine
        (lambda s: replace(s, latency_ms=None, server_cpu_ms=None), set()),
    ],
)
def test_what_is_growth(change: Callable[[Sample], Sample], fields: set[str]) -> None:
    result = found(change)
    assert grown(result) == fields
    assert ("GROWS" in text(list(result.values()))) is bool(fields)


def test_a_few_samples_are_not_judged() -> None:
    result = found(lambda s: replace(s, server_mb=60 + s.minutes * 100), minutes=1)
    assert not grown(result)
    assert "too few samples to judge" in text(list(result.values()))
