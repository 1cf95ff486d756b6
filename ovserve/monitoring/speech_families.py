"""The metrics of speech recognition. OVMS has none for it."""

from __future__ import annotations

from ovserve.monitoring.family import Family, value

FAMILIES: tuple[Family, ...] = (
    Family(
        "ovserve_speech_audio_seconds_total",
        "counter",
        "Seconds of audio that were read, pauses included.",
        value(lambda m: m.metrics.speech.audio_seconds),
    ),
    Family(
        "ovserve_speech_voice_seconds_total",
        "counter",
        "Seconds of speech in it, which is what the model gets.",
        value(lambda m: m.metrics.speech.speech_seconds),
    ),
    Family(
        "ovserve_speech_pieces_total",
        "counter",
        "Pieces of up to 28 s that the model has read.",
        value(lambda m: m.metrics.speech.pieces),
    ),
    Family(
        "ovserve_speech_open_requests",
        "gauge",
        "Recordings that are held for requests in progress.",
        value(lambda m: m.metrics.speech.open),
    ),
    Family(
        "ovserve_speech_real_time_factor",
        "histogram",
        "Seconds to an answer, waiting included, per second of audio.",
        value(lambda m: m.metrics.speech.real_time),
    ),
)
