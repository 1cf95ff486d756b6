"""POST audio/transcriptions and audio/translations: the fields of the form, as OpenAI names them.

The front makes a JSON object of the form's text fields, so that these bodies are decoded, described and shown
like any other; the file is not in it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from ovserve.api.openai.body import decode_body
from ovserve.api.openai.common import encode, event
from ovserve.api.openai.operation import Operation, Refused, doc
from ovserve.errors import InvalidArgument
from ovserve.kinds.payload import JsonEndpoint
from ovserve.kinds.speech.languages import language_name
from ovserve.kinds.speech.spec import Span, TranscribeArguments
from ovserve.llm.audio import Keywords, Prompt

TRANSCRIPTIONS, TRANSLATIONS = "audio/transcriptions", "audio/translations"
FILE = "file"
Format = Literal["json", "text", "srt", "verbose_json", "vtt"]
Granularity = Literal["segment", "word"]
Temperature = Annotated[float, Meta(ge=0, le=2)]


class AudioFields(msgspec.Struct, kw_only=True):
    """The fields that both endpoints have."""

    file: Annotated[str, doc("the audio, as a file part of the form; its name")]
    model: Annotated[str, doc("the name under which a graph is served")]
    prompt: Annotated[Prompt | None, doc("names, spelling, style")] = None
    response_format: Annotated[Format | None, doc("form of the answer")] = None
    temperature: Annotated[Temperature | None, doc("0: the likeliest words; above, they are drawn")] = None


class TranslationRequest(AudioFields, kw_only=True):
    """A form of audio/translations."""


class TranscriptionRequest(AudioFields, kw_only=True):
    language: Annotated[
        str | None, doc("code, locale or English name: de, deu, de-AT, German; default: found in the audio")
    ] = None
    timestamp_granularities: Annotated[
        Annotated[list[Granularity], Meta(max_length=8)] | None,
        doc("words need enable_word_timestamps in the graph"),
    ] = None
    stream: Annotated[bool | None, doc("events with text as it is recognized")] = None
    languages: Annotated[list[str] | None, doc("without effect: one language can be set")] = None
    hotwords: Annotated[Prompt | None, doc("words that the audio is likely to have")] = None
    keywords: Annotated[Keywords | None, doc("the same as a list; both count")] = None
    chunking_strategy: Annotated[str | None, doc("without effect: audio is always cut at silence")] = None
    include: Annotated[list[str] | None, doc("without effect: the engine reports no probabilities")] = None
    user: Annotated[str | None, doc("without effect")] = None


class Transcribe(msgspec.Struct, frozen=True):
    """A checked form."""

    model: str
    arguments: TranscribeArguments  # with the language as requested
    format: Format
    segments: bool  # in the answer
    ignored: tuple[str, ...]


class TranscriptSegment(msgspec.Struct):
    """One segment of verbose_json.

    OpenAI's `tokens`, `avg_logprob` and `no_speech_prob` are absent, because the library does not report
    them. With a constant 0 a client's filter of bad segments would keep everything. OpenAI's client reads
    absent ones as None.
    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    temperature: float
    compression_ratio: float


class TranscriptWord(msgspec.Struct):
    word: str
    start: float
    end: float


class DurationUsage(msgspec.Struct):
    seconds: int
    type: Literal["duration"] = "duration"


class Transcription(msgspec.Struct, kw_only=True, omit_defaults=True):
    text: str
    segments: list[TranscriptSegment] | None = None
    words: list[TranscriptWord] | None = None
    usage: DurationUsage


class VerboseTranscription(msgspec.Struct, kw_only=True):
    task: Literal["transcribe", "translate"]
    language: str
    duration: float
    text: str
    segments: list[TranscriptSegment]
    words: list[TranscriptWord] | msgspec.UnsetType = msgspec.UNSET
    usage: DurationUsage


class TranscriptDelta(msgspec.Struct, tag_field="type", tag="transcript.text.delta"):
    delta: str
    logprobs: list[Any] = []


class TranscriptSegmentEvent(msgspec.Struct, tag_field="type", tag="transcript.text.segment"):
    id: str
    start: float
    end: float
    text: str
    speaker: str = ""  # strict clients require it; the models know none


class TranscriptDone(msgspec.Struct, tag_field="type", tag="transcript.text.done"):
    """The end. OpenAI's `usage` is absent: it has tokens only here, and strict clients reject a duration."""

    text: str
    logprobs: list[Any] = []


TranscriptEvent = TranscriptDelta | TranscriptSegmentEvent | TranscriptDone

REFUSED = {
    "known_speaker_names": Refused("speakers are not told apart"),
    "known_speaker_references": Refused("speakers are not told apart"),
}
REPORTED = {
    "chunking_strategy": "audio is always cut at silence",
    "include": "the engine reports no probabilities",
    "languages": "one language can be set",
    "user": "without effect",
}
_BRACKETS = "[]"
_transcription = msgspec.json.Decoder(TranscriptionRequest, strict=False)
_translation = msgspec.json.Decoder(TranslationRequest, strict=False)


def decode_translation(body: bytes) -> Transcribe:
    """Raises InvalidArgument naming the field."""
    request, unknown = decode_body(body, _translation)
    if str(msgspec.json.decode(unknown.pop("stream", b"null"))).lower() in ("true", "1"):
        raise InvalidArgument.at("stream", "streaming is not supported for translations")
    return _checked(request, TranscriptionRequest(file="", model=""), unknown, translate=True)


def decode_transcription(body: bytes) -> Transcribe:
    """Raises InvalidArgument naming the field."""
    request, unknown = decode_body(body, _transcription)
    present = {name for name in REPORTED if getattr(request, name) is not None}
    return _checked(request, request, dict.fromkeys(present, msgspec.Raw()) | unknown, translate=False)


ENDPOINTS: dict[str, JsonEndpoint] = {
    TRANSCRIPTIONS: JsonEndpoint(TRANSCRIPTIONS, decode_transcription),
    TRANSLATIONS: JsonEndpoint(TRANSLATIONS, decode_translation),
}


def _checked(
    request: AudioFields,
    more: TranscriptionRequest,
    unknown: Mapping[str, msgspec.Raw],
    *,
    translate: bool,
) -> Transcribe:
    for name in REFUSED.keys() & unknown.keys():
        raise InvalidArgument.at(name, f"not supported: {REFUSED[name].why}")
    granularities = more.timestamp_granularities or []
    form = request.response_format or "json"
    if granularities and form not in ("json", "verbose_json"):
        raise InvalidArgument.at(
            "timestamp_granularities", f"only with response_format json or verbose_json, got {form}"
        )
    if more.stream and form not in ("json", "text", "verbose_json"):
        raise InvalidArgument.at("response_format", f"{form} cannot be streamed")
    if more.stream and "word" in granularities:
        raise InvalidArgument.at("stream", "true excludes timestamp_granularities word")
    arguments = TranscribeArguments(
        language=(more.language or "").strip(),
        translate=translate,
        prompt=request.prompt or "",
        hotwords=", ".join(filter(None, (more.hotwords, *(more.keywords or ())))),
        temperature=request.temperature or 0.0,
        timestamps="segment" in granularities or form in ("srt", "vtt", "verbose_json"),
        words="word" in granularities,
        stream=bool(more.stream),
    )
    return Transcribe(request.model, arguments, form, "segment" in granularities, tuple(sorted(unknown)))


def form_body(fields: dict[str, list[str]], files: dict[str, str]) -> bytes:
    """Return the JSON object of a form: a name that ends in [] is a list, another one the last value.

    Raises InvalidArgument for a name that occurs twice.
    """
    members: dict[str, Any] = dict(files)
    for name, values in fields.items():
        bare = name.removesuffix(_BRACKETS)
        if bare in files:
            raise InvalidArgument.at(bare, "expected a file with a name, got text")
        if bare in LISTS:
            members[bare] = [*members.get(bare, []), *values]
        elif bare in members:
            raise InvalidArgument.at(bare, f"not with {bare}{_BRACKETS}, which is the same")
        elif name != bare:
            members[bare] = values
        elif len(values) > 1:
            raise InvalidArgument(f"{name!r} occurs {len(values)} times in the form", param=name)
        elif values[0] or name == "model":  # forms of a browser send empty fields for absent ones
            members[bare] = values[0]
    return msgspec.json.encode(members)


LISTS = ("timestamp_granularities", "include", "languages", "keywords")

_EXAMPLE = {"file": "meeting.mp3", "model": "whisper-base", "language": "en"}
OPERATIONS = (
    Operation(
        "POST",
        f"/v3/{TRANSCRIPTIONS}",
        "Speech to text. The body is a form with a file.",
        answer=(Transcription, VerboseTranscription),
        request=TranscriptionRequest,
        event=TranscriptEvent,
        example=_EXAMPLE,
        defaults={"response_format": "json", "temperature": 0.0},
        refused=REFUSED,
        reported=REPORTED,
        declared=True,
        form=True,
    ),
    Operation(
        "POST",
        f"/v3/{TRANSLATIONS}",
        "Speech in any language to English text. The body is a form with a file.",
        answer=(Transcription, VerboseTranscription),
        request=TranslationRequest,
        example={"file": "interview.ogg", "model": "whisper-base"},
        defaults={"response_format": "json", "temperature": 0.0},
        declared=True,
        form=True,
    ),
)


# Transcripts in OpenAI's five forms, and as server-sent events.


JSON, PLAIN = "application/json", "text/plain; charset=utf-8"
TEXTS = ("text", "srt", "vtt")
FRAMES_PER_SECOND = 100  # frames of Whisper's spectrogram per second, the unit of `seek`


@dataclass
class Transcript:
    """The text of a recording, as far as it is known."""

    duration: float = 0.0  # seconds, of the whole recording
    language: str = ""  # code
    texts: list[str] = field(default_factory=list)  # of the pieces, as the model wrote them
    segments: list[Span] = field(default_factory=list)
    words: list[Span] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.texts).strip()

    @property
    def usage(self) -> DurationUsage:
        return DurationUsage(math.ceil(self.duration))


def content_type(request: Transcribe) -> str:
    return PLAIN if request.format in TEXTS else JSON


def whole_body(request: Transcribe, transcript: Transcript) -> bytes:
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
                task="translate" if request.arguments.translate else "transcribe",
                language=language_name(transcript.language or "en"),
                duration=round(transcript.duration, 3),
                text=transcript.text,
                segments=_segments(request, transcript),
                words=_words(transcript) if request.arguments.words else UNSET,
                usage=transcript.usage,
            )
        )
    return encode(
        Transcription(
            text=transcript.text,
            segments=_segments(request, transcript) if request.segments else None,
            words=_words(transcript) if request.arguments.words else None,
            usage=transcript.usage,
        )
    )


def delta_event(text: str) -> bytes:
    return event(TranscriptDelta(text))


def segment_events(first: int, segments: list[Span]) -> bytes:
    """`first` is the number of the first one."""
    return b"".join(
        event(TranscriptSegmentEvent(f"seg_{i}", round(s.start, 3), round(s.end, 3), s.text))
        for i, s in enumerate(segments, first)
    )


def done_event(text: str) -> bytes:
    """`text` is what the deltas have together."""
    return event(TranscriptDone(text))


def _segments(request: Transcribe, transcript: Transcript) -> list[TranscriptSegment]:
    return [
        TranscriptSegment(
            id=i,
            seek=int(s.start * FRAMES_PER_SECOND),
            start=round(s.start, 3),
            end=round(s.end, 3),
            text=s.text,
            temperature=request.arguments.temperature,
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
