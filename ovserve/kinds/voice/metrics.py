"""Counters of text to speech."""

from __future__ import annotations

from dataclasses import dataclass

from ovserve.telemetry.metrics import TO_FIRST_TOKEN, Histogram, counter, histogram


@dataclass(eq=False)
class TextToSpeechMetrics:
    """Sums since the server started, across reloads and engine restarts."""

    characters: int = counter(
        "ovserve_text_to_speech_characters_total", "Characters of sentences that were spoken."
    )
    sentences: int = counter("ovserve_text_to_speech_sentences_total", "Sentences that were spoken.")
    audio_seconds: float = counter(
        "ovserve_text_to_speech_audio_seconds_total", "Seconds of audio that were made of text."
    )
    busy_seconds: float = counter(
        "ovserve_text_to_speech_busy_seconds_total", "Seconds in which the engine made audio of text."
    )
    first_audio: Histogram = histogram(
        "ovserve_text_to_speech_first_audio_seconds",
        "Seconds from a request for speech to its first sentence.",
        TO_FIRST_TOKEN,
    )
    turn_seconds: Histogram = histogram(
        "ovserve_text_to_speech_turn_seconds",
        "Seconds that a sentence waited while others were spoken.",
        TO_FIRST_TOKEN,
    )

    def spoke(self, characters: int, audio_seconds: float, seconds: float, waited: float) -> None:
        """Count a sentence."""
        self.sentences += 1
        self.characters += characters
        self.audio_seconds += audio_seconds
        self.busy_seconds += seconds
        self.turn_seconds.observe(waited)
