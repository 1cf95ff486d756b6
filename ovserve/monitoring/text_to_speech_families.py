"""The metrics of text to speech. OVMS has none for it.

The real-time factor is the rate of `ovserve_text_to_speech_busy_seconds_total` over that of the audio.
"""

from __future__ import annotations

from ovserve.monitoring.family import Family, value

FAMILIES: tuple[Family, ...] = (
    Family(
        "ovserve_text_to_speech_characters_total",
        "counter",
        "Characters of sentences that were spoken.",
        value(lambda m: m.metrics.text_to_speech.characters),
    ),
    Family(
        "ovserve_text_to_speech_sentences_total",
        "counter",
        "Sentences that were spoken.",
        value(lambda m: m.metrics.text_to_speech.sentences),
    ),
    Family(
        "ovserve_text_to_speech_audio_seconds_total",
        "counter",
        "Seconds of audio that were made of text.",
        value(lambda m: m.metrics.text_to_speech.audio_seconds),
    ),
    Family(
        "ovserve_text_to_speech_busy_seconds_total",
        "counter",
        "Seconds in which the engine made audio of text.",
        value(lambda m: m.metrics.text_to_speech.busy_seconds),
    ),
    Family(
        "ovserve_text_to_speech_first_audio_seconds",
        "histogram",
        "Seconds from a request for speech to its first sentence.",
        value(lambda m: m.metrics.text_to_speech.first_audio),
    ),
    Family(
        "ovserve_text_to_speech_turn_seconds",
        "histogram",
        "Seconds that a sentence waited while others were spoken.",
        value(lambda m: m.metrics.text_to_speech.turn_seconds),
    ),
)
