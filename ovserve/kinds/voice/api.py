"""POST audio/speech: the request body, the head of a WAV file, and the events of a streamed answer.

Source: https://platform.openai.com/docs/api-reference/audio/createSpeech, read 2026-11-22
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from ovserve.api.openai.body import decode_body
from ovserve.api.openai.common import event
from ovserve.api.openai.operation import Operation, doc
from ovserve.errors import InvalidArgument
from ovserve.kinds.payload import packed
from ovserve.kinds.voice.spec import AudioFormat

NAME = "audio/speech"
CONTENT_TYPES: Mapping[AudioFormat, str] = {
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
}
UNKNOWN_SIZE = 0xFFFFFFFF  # in the head of a WAV that is sent before its end is known; players read on
FLAC_HEAD_BYTES = 26  # up to the number of samples; without it libsndfile and others cannot read the file
WAV_HEAD = struct.Struct("<4sI4s4sIHHIIHH4sI")


class VoiceId(msgspec.Struct):
    id: Annotated[str, doc("the name of the voice, as OpenAI writes that of one made by the user")]


class SpeechRequest(msgspec.Struct, kw_only=True):
    model: Annotated[str, doc("the name under which a graph is served")]
    input: Annotated[str, doc("the text to speak")]
    voice: Annotated[
        str | VoiceId | None,
        doc(
            "a name of `GET /v3/audio/voices`, or the part after `_`; default: the graph's, which also "
            "speaks for voices that only OpenAI has"
        ),
    ] = None
    response_format: Annotated[AudioFormat | None, doc("all but wav and pcm need the extra `audio`")] = None
    speed: Annotated[float | None, doc("1.0 is the voice's own; the graph sets the bounds")] = None
    language: Annotated[str | None, doc("such as en-us, en-gb, es; default: that of the voice")] = None
    stream_format: Annotated[
        Literal["audio", "sse"] | None,
        doc("audio: bytes as they are spoken; sse: events with base64; default: audio, wav and flac whole"),
    ] = None
    stream: Annotated[bool | None, doc("true: as `stream_format: sse`")] = None
    instructions: Annotated[str | None, doc("without effect: the models take none")] = None


class SpeechUsage(msgspec.Struct):
    """Tokens are characters of the input and tenths of a second of audio: voice models have no others."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class SpeechDelta(msgspec.Struct, tag_field="type", tag="speech.audio.delta"):
    audio: str


class SpeechDone(msgspec.Struct, tag_field="type", tag="speech.audio.done"):
    usage: SpeechUsage


class Voice(msgspec.Struct):
    id: str
    name: str
    model: str
    language: str | None
    default: bool


class VoiceList(msgspec.Struct):
    voices: list[Voice]


class Speech(msgspec.Struct, frozen=True):
    """A checked body; what depends on the model is not."""

    model: str
    input: str
    voice: str | None
    format: AudioFormat
    speed: float | None
    language: str | None
    stream: Literal["audio", "sse"] | None
    ignored: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Return whether the answer is one body. Many readers of WAV and FLAC need the size in the head."""
        return self.format in ("wav", "flac") and self.stream is None


_decoder = msgspec.json.Decoder(SpeechRequest)


def decode_speech(body: bytes) -> Speech:
    """Raises InvalidArgument naming the field."""
    request, unknown = decode_body(body, _decoder)
    packed(request.input, "input")
    if not request.input.strip():
        raise InvalidArgument.at("input", "expected text, got none")
    if request.speed is not None and not math.isfinite(request.speed):
        raise InvalidArgument.at("speed", f"expected a finite number, got {request.speed}")
    stream = request.stream_format
    if request.stream:
        if stream == "audio":
            raise InvalidArgument.at(
                "stream", "true asks for events and stream_format for audio; leave one out"
            )
        stream = "sse"
    voice = request.voice.id if isinstance(request.voice, VoiceId) else request.voice
    ignored = [*unknown, *(["instructions"] if request.instructions else [])]
    return Speech(
        request.model,
        request.input,
        voice,
        request.response_format or "wav",
        request.speed,
        request.language,
        stream,
        tuple(sorted(ignored)),
    )


def wav_head(rate: int, size: int | None) -> bytes:
    """Return the head of a WAV of 16-bit mono samples. `size`: their bytes, None if not known yet."""
    data = UNKNOWN_SIZE if size is None or size > UNKNOWN_SIZE - WAV_HEAD.size else size
    riff = UNKNOWN_SIZE if data == UNKNOWN_SIZE else data + WAV_HEAD.size - 8
    return WAV_HEAD.pack(b"RIFF", riff, b"WAVE", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16, b"data", data)


def flac_head(head: bytes, samples: int) -> bytes:
    """Return the first FLAC_HEAD_BYTES of a file with the number of its samples, which its encoder did not
    know."""
    return head[:-4] + struct.pack(">I", samples)


def delta_event(audio: bytes) -> bytes:
    return event(SpeechDelta(base64.b64encode(audio).decode()))


def done_event(characters: int, audio_seconds: float) -> bytes:
    tenths = round(10 * audio_seconds)
    return event(SpeechDone(SpeechUsage(characters, tenths, characters + tenths)))


OPERATION = Operation(
    "POST",
    "/v3/audio/speech",
    "Text to speech: the body is audio.",
    request=SpeechRequest,
    event=(SpeechDelta, SpeechDone),
    example={"model": "kokoro", "input": "Hello, how are you today?", "voice": "af_heart"},
    defaults={"response_format": "wav"},
    reported={"instructions": "the models take none"},
    declared=True,
)
VOICES = Operation(
    "GET",
    "/v3/audio/voices",
    "The voices of the graphs that speak.",
    answer=VoiceList,
    of_models=False,
    query={"model": "only those of this graph"},
)
OPERATIONS = (OPERATION, VOICES)
