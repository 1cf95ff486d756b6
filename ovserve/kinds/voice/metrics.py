"""Counters of text to speech."""

from __future__ import annotations

from ovserve.telemetry.metrics import TO_FIRST_TOKEN, Family, Histogram, value


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


FAMILIES: tuple[Family[TextToSpeechMetrics], ...] = (
    Family(
        "ovserve_text_to_speech_characters_total",
        "counter",
        "Characters of sentences that were spoken.",
        value(lambda m: m.characters),
    ),
    Family(
        "ovserve_text_to_speech_sentences_total",
        "counter",
        "Sentences that were spoken.",
        value(lambda m: m.sentences),
    ),
    Family(
        "ovserve_text_to_speech_audio_seconds_total",
        "counter",
        "Seconds of audio that were made of text.",
        value(lambda m: m.audio_seconds),
    ),
    Family(
        "ovserve_text_to_speech_busy_seconds_total",
        "counter",
        "Seconds in which the engine made audio of text.",
        value(lambda m: m.busy_seconds),
    ),
    Family(
        "ovserve_text_to_speech_first_audio_seconds",
        "histogram",
        "Seconds from a request for speech to its first sentence.",
        value(lambda m: m.first_audio),
    ),
    Family(
        "ovserve_text_to_speech_turn_seconds",
        "histogram",
        "Seconds that a sentence waited while others were spoken.",
        value(lambda m: m.turn_seconds),
    ),
)
