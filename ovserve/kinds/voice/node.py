"""T2sCalculator: text to speech with OVMS's options and graph files, sentence by sentence.

Voices: which voice and language a request means, of those that a model has.

Names of Kokoro's voices say their language by the first letter and the speaker after `_`: `bf_emma`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, ClassVar

import msgspec

from ovserve.engine.client.calls import CallClient
from ovserve.errors import InvalidArgument, Unavailable, shortened
from ovserve.graph import Context, Input, Node, Output, SidePacket, calculator
from ovserve.kinds.payload import (
    EVENT_STREAM,
    Decoder,
    HttpCalculator,
    HttpPayload,
    HttpResponse,
    JsonEndpoint,
    report_headers,
)
from ovserve.kinds.plugin_config import without_lookup
from ovserve.kinds.resource import Caller, EngineCalculator, Host, ItemStream, ResourceKind, model_path
from ovserve.kinds.voice.api import (
    CONTENT_TYPES,
    FLAC_HEAD_BYTES,
    NAME,
    Speech,
    decode_speech,
    delta_event,
    done_event,
    flac_head,
    wav_head,
)
from ovserve.kinds.voice.metrics import TextToSpeechMetrics
from ovserve.kinds.voice.spec import (
    SPEAK,
    NamedVoice,
    SpeakArguments,
    Spoken,
    TextToSpeechFacts,
    TextToSpeechSpec,
)
from ovserve.protos.options_pb2 import T2sCalculatorOptions
from ovserve.sandbox.bodies import Bodies

LANGUAGES: Mapping[str, str] = {
    "a": "en-us",
    "b": "en-gb",
    "e": "es",
    "f": "fr-fr",
    "h": "hi",
    "i": "it",
    "j": "ja",
    "p": "pt-br",
    "z": "zh",
}
SPELLINGS = {**LANGUAGES, "en": "en-us", "fr": "fr-fr", "pt": "pt-br"}
MAX_SHOWN_NAMES = 12  # names in an error message
# OpenAI's voices. Its clients require one: where the model has none of that name, they mean its default.
FOREIGN_VOICES = (
    *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage"),
    *("shimmer", "verse"),
)


class Voices(msgspec.Struct, frozen=True):
    facts: TextToSpeechFacts
    default: str  # "": the first one in English, else the first

    def find(self, name: str | None) -> str:
        """Return the name of the voice, "" for a model without voices. Raises InvalidArgument."""
        names = self.facts.voices
        if name is None:
            return self.default_name
        if name in names:
            return name
        folded = name.casefold()
        same = [n for n in names if n.casefold() == folded]
        matches = same or [n for n in names if n.casefold().partition("_")[2] == folded]
        if len(matches) == 1:
            return matches[0]
        text = shortened(repr(name))
        if matches:
            raise InvalidArgument.at("voice", f"{text} may be {' or '.join(matches)}; write one of them")
        if folded in FOREIGN_VOICES:
            return self.default_name
        why = f"Requested voice {text} not found in available voices: {_listed(names)}"
        raise InvalidArgument.at("voice", why)

    @property
    def default_name(self) -> str:
        names = self.facts.voices
        if self.default or not names:
            return self.default
        return "af_heart" if "af_heart" in names else names[0]

    def language_of(self, voice: str) -> str | None:
        """Return the language of a voice; None if its name does not say."""
        if not self.facts.languages:
            return None
        return LANGUAGES.get(voice[:1]) if voice[2:3] == "_" else "en-us"

    def language(self, requested: str | None, voice: str) -> str:
        """Return the language, "" for a model with one only. Raises InvalidArgument."""
        spoken = self.facts.languages
        if requested is None:
            code, field = self.language_of(voice) or "", f"voice: {voice} is"
        else:
            folded = requested.strip().casefold().replace("_", "-")
            code = SPELLINGS.get(folded, folded)
            if code not in spoken:
                code = SPELLINGS.get(folded.partition("-")[0], folded.partition("-")[0])
            field = f"language: {shortened(repr(requested))} is"
        if not spoken or code in spoken:
            return code if spoken else ""
        param = "voice" if requested is None else "language"
        why = f"{field} not a language that the model speaks here; it has {', '.join(spoken)}"
        if code in LANGUAGES.values() and code not in ("ja", "zh"):
            why += ". The others need eSpeak NG on the server"
        raise InvalidArgument(why, param=param)


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "the model has none"
    rest = len(names) - MAX_SHOWN_NAMES
    more = f" and {rest} more, see GET /v3/audio/voices" if rest > 0 else ""
    return ", ".join(names[:MAX_SHOWN_NAMES]) + more


PREFIX = "ovserve-speech-"
MOST_KEPT = 4 << 20  # bytes of a WAV that are kept in memory
SEND_CHUNK = 256 << 10  # bytes of a longer one that are sent at once
VOICE_FILES = "voices"
NEEDED = ("config.json", "openvino_model.xml")  # of Kokoro; SpeechT5 has openvino_encoder_model.xml
SPEECHT5 = "openvino_encoder_model.xml"


@dataclass(frozen=True)
class SpeechOptions:
    spec: TextToSpeechSpec
    speed_min: float
    speed_max: float
    default_voice: str
    max_input: int  # characters


class SpeechResource(msgspec.Struct, frozen=True):
    """The side packet of nodes that speak."""

    engine: Caller
    model: TextToSpeechFacts
    voices: Voices
    options: SpeechOptions
    bodies: Bodies
    metrics: TextToSpeechMetrics

    def facts(self) -> Mapping[str, object]:
        return {
            "engine": self.model.engine,
            "architecture": self.model.architecture,
            "sample_rate": self.model.sample_rate,
            "voices": list(self.model.voices),
            "default_voice": self.voices.default_name,
            "languages": list(self.model.languages),
            "response_formats": list(self.model.formats),
            "speed": [self.options.speed_min, self.options.speed_max],
            "max_input_characters": self.options.max_input,
        }

    def arguments(self, request: Speech) -> SpeakArguments:
        """Return what the engine gets. Raises InvalidArgument for what this model cannot do."""
        if len(request.input) > self.options.max_input:
            raise InvalidArgument.at(
                "input", f"expected at most {self.options.max_input} characters, got {len(request.input)}"
            )
        if request.format not in self.model.formats:
            raise InvalidArgument.at(
                "response_format",
                f"{request.format} needs the extra `audio` on the server; without it there "
                f"is {' and '.join(self.model.formats)}",
            )
        voice = self.voices.find(request.voice)
        language = self.voices.language(request.language, voice)
        return SpeakArguments(request.input, voice, language, self._speed(request.speed), request.format)

    def _speed(self, requested: float | None) -> float:
        low, high = self.options.speed_min, self.options.speed_max
        speed = 1.0 if requested is None else requested
        if not low <= speed <= high:
            raise InvalidArgument(
                f"speed must be between speed_min ({low:g}) and speed_max ({high:g}), got {speed:g}",
                param="speed",
            )
        if speed != 1.0 and not self.model.speeds:
            raise InvalidArgument.at("speed", f"{self.model.architecture} has one speed, 1; got {speed:g}")
        return speed


def _parse(node: Node) -> SpeechOptions:
    options = node.required_options(T2sCalculatorOptions)
    path, _ = model_path(node, options.models_path, lambda _: None, task="text2speech")
    properties = without_lookup(node, options.plugin_config)
    low, high = options.speed_min, options.speed_max
    for field, value in (("speed_min", low), ("speed_max", high)):
        if not math.isfinite(value) or value <= 0:
            raise node.error(f"expected a number above 0, got {value:g}", field)
    if low > high:
        raise node.error(f"is {low:g}, above speed_max, {high:g}", "speed_min")
    if not options.max_input_characters:
        raise node.error("expected at least 1, got 0", "max_input_characters")
    voices = tuple(NamedVoice(v.name, str(_voice_file(node, path, v.path))) for v in options.voices)
    spec = TextToSpeechSpec(
        str(path), options.target_device or "CPU", json.dumps(properties, sort_keys=True), voices=voices
    )
    return SpeechOptions(spec, low, high, options.default_voice, options.max_input_characters)


def _voice_file(node: Node, model: Path, text: str) -> Path:
    """Return a voice's file: relative to the graph's directory, else to the model's. Raises LoadError."""
    places = [(base / text).resolve() for base in (node.config.base, model)]
    for place in places:
        if place.is_file():
            return place
    raise node.error(f"{' and '.join(map(str, dict.fromkeys(places)))} do not exist", "path", text)


def _check(node: Node, options: SpeechOptions) -> None:
    directory = Path(options.spec.model_path)
    needed = ("config.json",) if (directory / SPEECHT5).is_file() else NEEDED
    if missing := [name for name in needed if not (directory / name).is_file()]:
        raise node.error(f"{directory} has no {', '.join(missing)}", "models_path")
    files = {file.stem for file in (directory / VOICE_FILES).glob("*.bin")}
    _check_default(node, options, files | {voice.name for voice in options.spec.voices})


def _check_default(node: Node, options: SpeechOptions, voices: Collection[str]) -> None:
    """Raises LoadError for a default voice that the model does not have."""
    if options.default_voice and options.default_voice not in voices:
        raise node.error(f"{options.default_voice!r} is not a voice of the model", "default_voice")


async def _make(node: Node, options: SpeechOptions, engine: CallClient, host: Host) -> SpeechResource:
    facts = engine.facts
    assert isinstance(facts, TextToSpeechFacts), "the facts of TextToSpeechSpec"
    _check_default(node, options, facts.voices)
    voices = Voices(facts, options.default_voice)
    return SpeechResource(
        host.admit_calls(engine, {}),
        facts,
        voices,
        options,
        host.bodies,
        host.metrics.of(TextToSpeechMetrics),
    )


SPEAKER = ResourceKind(
    tag="TTS_NODE_RESOURCES",
    packet_type=SpeechResource,
    options_type=T2sCalculatorOptions,
    parse=_parse,
    spec=lambda options: options.spec,
    make=_make,
    check=_check,
)


def _stand_in(name: str | None, voice: str) -> list[str]:
    """Return what the header says of a voice that stands in for one of OpenAI's."""
    own = voice.casefold()
    is_own = name is None or name.casefold() in (own, own.partition("_")[2])
    return [] if is_own else [f"voice:{name}={voice or 'default'}"]


async def _spoken(stream: ItemStream, metrics: TextToSpeechMetrics) -> tuple[Spoken, bytes] | None:
    """Return the next sentence with its samples; None at the end."""
    item = await stream.next()
    if item is None:
        return None
    spoken: Spoken = item.decode(Spoken)
    if spoken.text:
        metrics.spoke(len(spoken.text), spoken.audio_seconds, spoken.seconds, spoken.waited)
    return spoken, b"".join(bytes(blob) for blob in item.blobs)


async def speak(
    speaker: SpeechResource, text: str, voice: str, speed: float = 1.0
) -> AsyncGenerator[tuple[Spoken, bytes]]:
    """Yield sentence by sentence, with its samples. Leaving the loop ends the work."""
    arguments = SpeakArguments(text, voice, speaker.voices.language(None, voice), speed)
    stream = await speaker.engine.call(SPEAK, arguments)
    try:
        while (item := await _spoken(stream, speaker.metrics)) is not None:
            if item[0].text:
                yield item
    finally:
        stream.cancel()  # no effect on one that has ended


@calculator("T2sCalculator")
class T2sCalculator(EngineCalculator, HttpCalculator):
    """Sends the audio of a sentence before the next one is spoken."""

    runs_on = "loop"
    resource = SPEAKER
    endpoints: ClassVar[Mapping[str, Decoder]] = {NAME: JsonEndpoint(NAME, decode_speech)}

    request = Input("HTTP_REQUEST_PAYLOAD", HttpPayload)
    response: Output[HttpResponse | bytes] = Output("HTTP_RESPONSE_PAYLOAD", HttpResponse | bytes)
    speaker = SidePacket("TTS_NODE_RESOURCES", SpeechResource)

    def open(self, cc: Context) -> None:
        self.stream: ItemStream | None = None

    async def process(self, cc: Context) -> None:
        payload = cc[self.request]
        if payload is None:
            return
        self.began, self.spoke = time.monotonic(), False
        speaker = cc[self.speaker]
        self.metrics = speaker.metrics
        request = await speaker.bodies.run(payload.head.large, decode_speech, payload.body)
        arguments = speaker.arguments(request)
        self.headers = report_headers(request.ignored, _stand_in(request.voice, arguments.voice))
        self.stream = await speaker.engine.call(SPEAK, arguments)
        await (self._whole if request.whole else self._parts)(cc, request, speaker)

    async def _whole(self, cc: Context, request: Speech, speaker: SpeechResource) -> None:
        """Send a WAV or FLAC, which begins with its size. A long one waits on disk: minutes of audio come of
        a short text."""
        kind, headers = CONTENT_TYPES[request.format], self.headers
        with SpooledTemporaryFile(MOST_KEPT, prefix=PREFIX) as parts:
            rate, samples = speaker.model.sample_rate, 0
            while (item := await self._next()) is not None:
                samples += round(item[0].audio_seconds * rate)
                try:
                    parts.write(item[1])
                except OSError as error:  # from MOST_KEPT on it is a file
                    raise Unavailable(f"the server cannot store a long answer: {error.strerror}") from error
            size = parts.tell()
            parts.seek(0)
            flac = request.format == "flac"
            head = flac_head(parts.read(FLAC_HEAD_BYTES), samples) if flac else wav_head(rate, size)
            whole, at = len(head) + size - parts.tell(), cc.timestamp
            body = head + parts.read(MOST_KEPT)
            if whole == len(body):
                cc.send(self.response, HttpResponse(body, kind, headers))
                return
            cc.send(self.response, HttpResponse(body, kind, headers, more=True, size=whole))
            while body := parts.read(SEND_CHUNK):
                await cc.flush()
                at += 1
                cc.send(self.response, body, at)

    async def _parts(self, cc: Context, request: Speech, speaker: SpeechResource) -> None:
        events = request.stream == "sse"
        before = wav_head(speaker.model.sample_rate, None) if request.format == "wav" else b""
        audio_seconds, at = 0.0, cc.timestamp
        while (item := await self._next()) is not None:
            spoken, audio = item
            audio_seconds += spoken.audio_seconds
            if before + audio:
                part = delta_event(before + audio) if events else before + audio
                self._send(cc, at, part, request)
                at, before = at + 1, b""
                await cc.flush()
        if events:
            self._send(cc, at, done_event(len(request.input), audio_seconds), request)

    def _send(self, cc: Context, at: int, part: bytes, request: Speech) -> None:
        if at > cc.timestamp:
            cc.send(self.response, part, at)
            return
        kind = EVENT_STREAM if request.stream == "sse" else CONTENT_TYPES[request.format]
        cc.send(self.response, HttpResponse(part, kind, self.headers, more=True))

    async def _next(self) -> tuple[Spoken, bytes] | None:
        assert self.stream is not None
        item = await _spoken(self.stream, self.metrics)
        if item is not None and item[0].text and not self.spoke:
            self.spoke = True
            self.metrics.first_audio.observe(time.monotonic() - self.began)
        return item

    def close(self, cc: Context) -> Any:
        if self.stream is not None:
            self.stream.cancel()  # no effect on one that has ended
