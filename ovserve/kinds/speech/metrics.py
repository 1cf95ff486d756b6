"""Counters of speech to text."""

from __future__ import annotations

from dataclasses import dataclass

from ovserve.telemetry.metrics import Histogram, counter, histogram

# Seconds of computing per second of audio.
REAL_TIME = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)


@dataclass(eq=False)
class SpeechMetrics:
    """Sums since the server started, across reloads and engine restarts."""

    audio_seconds: float = counter(
        "ovserve_speech_audio_seconds_total", "Seconds of audio that were read, pauses included."
    )
    speech_seconds: float = counter(
        "ovserve_speech_voice_seconds_total", "Seconds of speech in it, which is what the model gets."
    )
    pieces: int = counter("ovserve_speech_pieces_total", "Pieces of up to 28 s that the model has read.")
    open: int = counter(
        "ovserve_speech_open_requests", "Recordings that are held for requests in progress.", "gauge"
    )
    real_time: Histogram = histogram(
        "ovserve_speech_real_time_factor",
        "Seconds to an answer, waiting included, per second of audio.",
        REAL_TIME,
    )

    def heard(self, seconds: float, speech: float) -> None:
        """Add a part of a recording."""
        self.audio_seconds += seconds
        if speech:
            self.speech_seconds += speech
            self.pieces += 1
