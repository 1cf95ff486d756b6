"""Transcripts in OpenAI's five forms, and as server-sent events."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET

from ovserve.api.openai.common import encode, event
from ovserve.kinds.speech.api import (
    DurationUsage,
    Transcribe,
    TranscriptDelta,
    TranscriptDone,
    Transcription,
    TranscriptSegment,
    TranscriptSegmentEvent,
    TranscriptWord,
    VerboseTranscription,
)
from ovserve.kinds.speech.languages import language_name

JSON, PLAIN = "application/json", "text/plain; charset=utf-8"
TEXTS = ("text", "srt", "vtt")
FRAMES_PER_SECOND = 100  # frames of Whisper's spectrogram per second, the unit of `seek`


class Timed(msgspec.Struct, frozen=True):
    """A segment or a word; times are in seconds."""

    start: float
    end: float
    text: str


@dataclass
class Transcript:
    """The text of a recording, as far as it is known."""

    duration: float = 0.0  # seconds, of the whole recording
    language: str = ""  # code
    texts: list[str] = field(default_factory=list)  # of the pieces, as the model wrote them
    segments: list[Timed] = field(default_factory=list)
    words: list[Timed] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.texts).strip()

    @property
    def usage(self) -> DurationUsage:
        return DurationUsage(math.ceil(self.duration))


def content_type(request: Transcribe) -> str:
    return PLAIN if request.format in TEXTS else JSON


def whole(request: Transcribe, transcript: Transcript) -> bytes:
    """Return the body of the answer."""
    if request.format == "text":
        return transcript.text.encode() + b"\n"
    if request.format == "srt":
        return "".join(
            f"{i}\n{_clock(s.start, ',')} --> {_clock(s.end, ',')}\n{_line(s.text)}\n\n"
            for i, s in enumerate(transcript.segments, 1)
        ).encode()
    if request.format == "vtt":
        cues = "".join(
            f"{_clock(s.start, '.')} --> {_clock(s.end, '.')}\n{_line(s.text)}\n\n"
            for s in transcript.segments
        )
        return f"WEBVTT\n\n{cues}".encode()
    if request.format == "verbose_json":
        return encode(
            VerboseTranscription(
                task="translate" if request.translate else "transcribe",
                language=language_name(transcript.language or "en"),
                duration=round(transcript.duration, 3),
                text=transcript.text,
                segments=_segments(request, transcript),
                words=_words(transcript) if request.words else UNSET,
                usage=transcript.usage,
            )
        )
    return encode(
        Transcription(
            text=transcript.text,
            segments=_segments(request, transcript) if request.segments else None,
            words=_words(transcript) if request.words else None,
            usage=transcript.usage,
        )
    )


def delta_event(text: str) -> bytes:
    return event(TranscriptDelta(text))


def segment_events(first: int, segments: list[Timed]) -> bytes:
    """`first` is the number of the first one."""
    return b"".join(
        event(TranscriptSegmentEvent(f"seg_{i}", round(s.start, 3), round(s.end, 3), s.text))
        for i, s in enumerate(segments, first)
    )


def done_event(text: str, transcript: Transcript) -> bytes:
    """`text` is what the deltas have together."""
    return event(TranscriptDone(text, transcript.usage))


def _segments(request: Transcribe, transcript: Transcript) -> list[TranscriptSegment]:
    return [
        TranscriptSegment(
            id=i,
            seek=int(s.start * FRAMES_PER_SECOND),
            start=round(s.start, 3),
            end=round(s.end, 3),
            text=s.text,
            temperature=request.temperature,
            compression_ratio=_ratio(s.text),
        )
        for i, s in enumerate(transcript.segments)
    ]


def _words(transcript: Transcript) -> list[TranscriptWord]:
    return [TranscriptWord(w.text.strip(), round(w.start, 3), round(w.end, 3)) for w in transcript.words]


def _ratio(text: str) -> float:
    data = text.encode()
    return round(len(data) / len(zlib.compress(data)), 3) if data else 0.0


def _clock(seconds: float, point: str) -> str:
    """01:02:03,004 or 01:02:03.004."""
    milliseconds = round(max(0.0, seconds) * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"


def _line(text: str) -> str:
    """An arrow would begin a cue, and an empty line end one."""
    return " ".join(text.replace("-->", "->").split())
