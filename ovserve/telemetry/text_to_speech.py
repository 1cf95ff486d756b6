"""Measurements of text to speech, per servable."""

from __future__ import annotations

from ovserve.telemetry.histogram import TO_FIRST_TOKEN, Histogram


class TextToSpeechMetrics:
    """Sums since the server started, across reloads and engine restarts."""

    def __init__(self) -> None:
        self.characters = 0  # that were spoken
        self.sentences = 0
        self.audio_seconds = 0.0
        self.busy_seconds = 0.0  # of computing it
        self.first_audio = Histogram(TO_FIRST_TOKEN)  # seconds from the request to its first sentence
        self.turn_seconds = Histogram(TO_FIRST_TOKEN)  # a sentence waits while others are spoken

    def spoke(self, characters: int, audio_seconds: float, seconds: float, waited: float) -> None:
        """Count a sentence."""
        self.sentences += 1
        self.characters += characters
        self.audio_seconds += audio_seconds
        self.busy_seconds += seconds
        self.turn_seconds.observe(waited)
