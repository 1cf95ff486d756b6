"""Counters of speech to text."""

from __future__ import annotations

from ovserve.telemetry.metrics import Family, Histogram, value

# Seconds of computing per second of audio.
REAL_TIME = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)


class SpeechMetrics:
    """Sums since the server started, across reloads and engine restarts."""

    def __init__(self) -> None:
        self.audio_seconds = 0.0  # of answered requests and parts of others
        self.speech_seconds = 0.0  # of these, what the model has read: pauses are left out
        self.pieces = 0
        self.real_time = Histogram(REAL_TIME)  # per request, its waiting included
        self.open = 0  # requests whose audio is held

    def heard(self, seconds: float, speech: float) -> None:
        """Add a part of a recording."""
        self.audio_seconds += seconds
        if speech:
            self.speech_seconds += speech
            self.pieces += 1


FAMILIES: tuple[Family[SpeechMetrics], ...] = (
    Family(
        "ovserve_speech_audio_seconds_total",
        "counter",
        "Seconds of audio that were read, pauses included.",
        value(lambda m: m.audio_seconds),
    ),
    Family(
        "ovserve_speech_voice_seconds_total",
        "counter",
        "Seconds of speech in it, which is what the model gets.",
        value(lambda m: m.speech_seconds),
    ),
    Family(
        "ovserve_speech_pieces_total",
        "counter",
        "Pieces of up to 28 s that the model has read.",
        value(lambda m: m.pieces),
    ),
    Family(
        "ovserve_speech_open_requests",
        "gauge",
        "Recordings that are held for requests in progress.",
        value(lambda m: m.open),
    ),
    Family(
        "ovserve_speech_real_time_factor",
        "histogram",
        "Seconds to an answer, waiting included, per second of audio.",
        value(lambda m: m.real_time),
    ),
)
