"""Where audio is cut: pure functions over probabilities of speech, and the real detector on real speech."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovserve.kinds.speech.spec import MAX_SAMPLES
from ovserve.kinds.speech.worker.transcribe import (
    FRAME,
    MAX_PIECE,
    PAD_SAMPLES,
    UNSURE_TAIL,
    VoiceActivity,
    cut,
    widened,
)
from ovserve.llm.audio import SAMPLES_PER_SECOND
from tests.speech import RECORDING, samples

TELEPHONE = RECORDING.with_name("telephone.flac")  # Kokoro's voice, 8 kHz
SECOND = SAMPLES_PER_SECOND // FRAME  # frames, nearly


def probabilities(*parts: tuple[float, float]) -> np.ndarray:
    """Parts of so many seconds, with a probability each."""
    return np.concatenate([np.full(round(seconds * SECOND), p, np.float32) for seconds, p in parts])


def whole(found: np.ndarray) -> int:
    return len(found) * FRAME


def test_silence_and_clicks_are_not_read() -> None:
    for quiet in (probabilities((20, 0.02)), probabilities((5, 0.1), (0.2, 0.99), (5, 0.1))):
        assert cut(quiet, whole(quiet), last=True).ranges == ()
        assert cut(quiet, whole(quiet), last=True).consumed == whole(quiet)
        assert cut(quiet, whole(quiet), last=False).consumed == whole(quiet) - UNSURE_TAIL


def test_long_pauses_are_left_out_and_times_are_mapped_back() -> None:
    found = probabilities((2, 0), (3, 0.9), (4, 0), (3, 0.9), (2, 0))
    made = cut(found, whole(found), last=True)
    first, second = made.ranges
    assert made.consumed == whole(found)
    assert first.begin == pytest.approx(2 * SAMPLES_PER_SECOND - PAD_SAMPLES, abs=SAMPLES_PER_SECOND / 5)
    assert second.begin == pytest.approx(9 * SAMPLES_PER_SECOND - PAD_SAMPLES, abs=SAMPLES_PER_SECOND / 2)
    length = (first.end - first.begin) / SAMPLES_PER_SECOND
    assert made.seconds(0) == first.begin / SAMPLES_PER_SECOND
    assert made.seconds(length + 1) == pytest.approx(second.begin / SAMPLES_PER_SECOND + 1)
    assert made.joined(np.arange(whole(found), dtype=np.float32)).size == sum(e - b for b, e in made.ranges)


def test_speech_without_a_pause_is_cut_where_it_is_least_likely() -> None:
    found = probabilities((22, 0.95), (0.2, 0.6), (30, 0.95))
    made = cut(found, whole(found), last=False)
    assert made.ranges[0].begin == 0
    assert (
        made.consumed
        == made.ranges[-1].end
        == pytest.approx(22.1 * SAMPLES_PER_SECOND, abs=SAMPLES_PER_SECOND / 4)
    )


def test_a_part_that_does_not_fit_waits_for_the_next_piece() -> None:
    found = probabilities((20, 0.9), (0.5, 0), (20, 0.9), (1, 0))
    made = cut(found, whole(found), last=True)
    assert len(made.ranges) == 1
    assert made.consumed == pytest.approx(20.3 * SAMPLES_PER_SECOND, abs=SAMPLES_PER_SECOND / 2)
    rest = found[made.consumed // FRAME :]
    again = cut(rest, whole(rest), last=True)
    assert again.consumed == whole(rest)


def test_speech_at_the_end_of_a_window_is_read_when_all_of_it_is_there() -> None:
    found = probabilities((30, 0), (29.9, 0.9))
    made = cut(found, whole(found), last=False)
    assert made.ranges == ()
    assert made.consumed == pytest.approx(30 * SAMPLES_PER_SECOND - PAD_SAMPLES, abs=SAMPLES_PER_SECOND / 2)


@given(
    st.lists(st.tuples(st.floats(0.1, 20), st.floats(0, 1)), min_size=1, max_size=12),
    st.booleans(),
    st.integers(0, FRAME - 1),
)
def test_every_window_is_consumed_and_no_piece_is_too_long(
    parts: list[tuple[float, float]], last: bool, less: int
) -> None:
    found = probabilities(*parts)[: MAX_SAMPLES // FRAME]
    if not len(found):
        return
    size = max(1, whole(found) - less)
    made = cut(found, size, last=last)
    assert 0 < made.consumed <= max(size, FRAME)
    assert sum(end - begin for begin, end in made.ranges) <= MAX_PIECE
    assert all(0 <= begin < end <= size for begin, end in made.ranges)
    assert all(a.end <= b.begin for a, b in zip(made.ranges, made.ranges[1:], strict=False))
    assert not made.ranges or made.ranges[-1].end <= made.consumed


def test_the_detector_hears_speech_and_nothing_else() -> None:
    voice = VoiceActivity()
    said = samples().astype(np.float32) / 32768
    assert np.mean(voice.probabilities(said) > 0.5) > 0.6
    drawn = np.random.default_rng(3)
    hum = np.sin(np.arange(10 * SAMPLES_PER_SECOND) * 2 * np.pi * 50 / SAMPLES_PER_SECOND).astype(np.float32)
    for noise in (
        np.zeros(10 * SAMPLES_PER_SECOND, np.float32),
        drawn.normal(0, 0.05, 10 * SAMPLES_PER_SECOND).astype(np.float32),
        hum,
    ):
        assert cut(voice.probabilities(noise), noise.size, last=True).ranges == ()
    assert voice.probabilities(np.zeros(0, np.float32)).size == 0


def test_telephone_speech_is_speech() -> None:
    """Kokoro's voice at 8 kHz: without a mirror image above 4 kHz a tenth of its frames is taken for
    speech."""
    voice, said = VoiceActivity(), samples(TELEPHONE).astype(np.float32) / 32768
    assert np.mean(voice.probabilities(said) > 0.5) > 0.6
    state, found = b"", []
    for at in range(0, said.size, 3 * FRAME):
        values, state = voice.continued(said[at : at + 3 * FRAME], state)
        found += values.tolist()
    assert np.mean(np.array(found) > 0.5) > 0.6
    recorded = samples().astype(np.float32) / 32768
    assert widened(recorded) is recorded
