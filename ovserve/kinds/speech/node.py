"""S2tCalculator: speech to text, with OVMS's options and graph files."""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import ClassVar

import msgspec

from ovserve.api.openai.realtime.packets import Samples
from ovserve.engine.client.calls import CallClient
from ovserve.errors import Internal, InvalidArgument, NotFound
from ovserve.graph import Context, Input, Node, Output, SidePacket, calculator
from ovserve.kinds.payload import (
    EVENT_STREAM,
    Decoder,
    HttpCalculator,
    HttpPayload,
    HttpResponse,
    ignored_header,
)
from ovserve.kinds.plugin_config import without_lookup
from ovserve.kinds.resource import (
    Caller,
    CallerSession,
    EngineCalculator,
    Host,
    ItemStream,
    ResourceKind,
    facts_of,
    model_path,
)
from ovserve.kinds.speech.api import (
    ENDPOINTS,
    FILE,
    Transcribe,
    Transcript,
    content_type,
    delta_event,
    done_event,
    segment_events,
    whole_body,
)
from ovserve.kinds.speech.languages import language_code
from ovserve.kinds.speech.metrics import SpeechMetrics
from ovserve.kinds.speech.spec import (
    MAX_SAMPLES,
    TRANSCRIBE,
    Piece,
    SpeechFacts,
    SpeechToTextSpec,
    TextDelta,
    TranscribeArguments,
    TranscribeItem,
    missing_speech_files,
    read_speech_files,
)
from ovserve.llm.audio import SAMPLES_PER_SECOND
from ovserve.protos.options_pb2 import S2tCalculatorOptions
from ovserve.sandbox.audio_loader import AudioLoader

# One recording on its way to text: pieces of audio to the engine, text and times from it, in order.
#
# The engine says after each piece how far it got, so only the audio of one call is in memory. Between two
# pieces the calls of other requests take their turn, weighted by seconds of audio.


PROMPT_CHARACTERS = 1000  # characters of the text before that are sent as a prompt
PIECE_SECONDS = 30  # a call counts for at most so many seconds in the queue: it reads no more

_item: msgspec.msgpack.Decoder[TranscribeItem] = msgspec.msgpack.Decoder(TranscribeItem)


class Transcription:
    """`next` until it returns None; then `transcript` is complete. `close` it in any case."""

    def __init__(
        self,
        arguments: TranscribeArguments,
        recording: Samples,
        session: CallerSession,
        metrics: SpeechMetrics,
    ) -> None:
        self.transcript = Transcript(duration=recording.seconds, language=arguments.language)
        self.streamed = ""  # what `next` has returned
        self._arguments, self._recording = arguments, recording
        self._session, self._metrics = session, metrics
        self._at = 0  # samples that have been read
        self._stream: ItemStream | None = None
        self._said = ""  # of the piece at hand
        self._begun = time.monotonic()
        metrics.open += 1

    async def next(self) -> str | None:
        """Return the next text, None at the end of the recording. Without `stream`, of a whole piece."""
        while self._stream is not None or self._at < self._recording.samples:
            if self._stream is None:
                self._stream = await self._send()
            item = await self._stream.next()
            if item is None:
                raise Internal(f"the engine ended {TRANSCRIBE} without a piece")
            value = _item.decode(item.value)
            if isinstance(value, TextDelta):
                self._said += value.text
                text = value.text
            else:
                text = value.text.removeprefix(self._said) if value.text.startswith(self._said) else ""
                await self._stream.next()  # the end, so that the call counts as finished
                self._stream = None
                self._take(value)
            if text := self._joined(text):
                return text
        self._metrics.real_time.observe((time.monotonic() - self._begun) / self._recording.seconds)
        self._session.close(finished=True)
        return None

    def _joined(self, text: str) -> str:
        """Text begins without a space."""
        text = text if self.streamed else text.lstrip()
        self.streamed += text
        return text

    async def _send(self) -> ItemStream:
        audio = self._recording.read(self._at, MAX_SAMPLES)
        samples_left = self._recording.samples - self._at
        transcript = self.transcript
        arguments = msgspec.structs.replace(
            self._arguments,
            last=samples_left <= MAX_SAMPLES,
            language=transcript.language,
            prompt="".join(transcript.texts)[-PROMPT_CHARACTERS:] or self._arguments.prompt,
        )
        seconds = min(samples_left // SAMPLES_PER_SECOND + 1, PIECE_SECONDS)
        return await self._session.call(TRANSCRIBE, arguments, (audio,), cost=seconds)

    def _take(self, piece: Piece) -> None:
        if piece.consumed <= 0:
            raise Internal("the engine read nothing of the audio")
        transcript, seconds = self.transcript, self._at / SAMPLES_PER_SECOND
        transcript.texts.append(piece.text)
        transcript.segments += [span.moved(seconds) for span in piece.segments]
        transcript.words += [span.moved(seconds) for span in piece.words]
        transcript.language = transcript.language or piece.language
        self._at += piece.consumed
        self._said = ""
        self._metrics.heard(piece.consumed / SAMPLES_PER_SECOND, piece.speech)

    def close(self) -> None:
        """Cancel what runs, and release the audio; any number of times."""
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None
        self._session.close()
        if not self._recording.closed:
            self._recording.close()
            self._metrics.open -= 1


STREAMS, MOST_STREAMS = "NUM_STREAMS", 64


def speech_spec(node: Node) -> SpeechToTextSpec:
    """Raises LoadError naming the field."""
    options = node.required_options(S2tCalculatorOptions)
    properties = without_lookup(node, options.plugin_config)
    streams = str(properties.get(STREAMS, 1))
    if not (streams.isascii() and streams.isdigit() and 1 <= int(streams) <= MOST_STREAMS):
        raise node.error(f"{STREAMS}: expected 1 to {MOST_STREAMS}, got {streams}", "plugin_config")
    path, _ = model_path(node, options.models_path, read_speech_files, task="speech2text")
    return SpeechToTextSpec(
        str(path),
        options.target_device or "CPU",
        json.dumps(properties, sort_keys=True),
        word_timestamps=options.enable_word_timestamps,
    )


def check_speech_files(node: Node, spec: SpeechToTextSpec) -> None:
    """Raises LoadError for a directory that lacks a file, or what an option needs."""
    path = Path(spec.model_path)
    if missing := missing_speech_files(path):
        raise node.error("; ".join(missing), "models_path")
    files = read_speech_files(path)
    if spec.word_timestamps and not (files.is_whisper and files.alignment_heads):
        raise node.error(
            "the model has no word timestamps: its generation_config.json has no alignment_heads",
            "enable_word_timestamps",
        )


KEPT_CHARACTERS = 1 << 20


@dataclass(frozen=True)
class SpeechResource:
    """The side packet of the nodes that share an engine."""

    engine: Caller
    model: SpeechFacts
    audio: AudioLoader
    metrics: SpeechMetrics
    transcripts: OrderedDict[bytes, str] = field(default_factory=OrderedDict)  # of parts of chats, by digest

    def facts(self) -> Mapping[str, object]:
        return facts_of(self.model)

    async def transcribe(self, data: str, param: str) -> str:
        """Return the text of audio, in base64 or as a data URL. Raises InvalidArgument naming `param`.

        Each turn of a chat brings the audio of the turns before it, so the last texts are kept.
        """
        digest = await asyncio.to_thread(lambda: blake2b(data.encode()).digest())
        if digest in self.transcripts:
            self.transcripts.move_to_end(digest)
            return self.transcripts[digest]
        text = await self._transcribed(data, param)
        self.transcripts[digest] = text
        while len(self.transcripts) > 1 and sum(map(len, self.transcripts.values())) > KEPT_CHARACTERS:
            self.transcripts.popitem(last=False)
        return text

    async def _transcribed(self, data: str, param: str) -> str:
        session = self.engine.session()
        run: Transcription | None = None
        try:
            recording = await self.audio.load_base64(data, param)
            run = Transcription(TranscribeArguments(), recording, session, self.metrics)
            while await run.next() is not None:
                pass
            return "".join(run.transcript.texts).strip()
        finally:
            if run is not None:
                run.close()
            session.close()


async def _make(node: Node, spec: SpeechToTextSpec, engine: CallClient, host: Host) -> SpeechResource:
    facts = engine.facts
    assert isinstance(facts, SpeechFacts), "the facts of SpeechToTextSpec"
    return SpeechResource(host.admit_calls(engine, {}), facts, host.audio, host.metrics.of(SpeechMetrics))


SPEECH = ResourceKind(
    tag="STT_NODE_RESOURCES",
    packet_type=SpeechResource,
    options_type=S2tCalculatorOptions,
    parse=speech_spec,
    spec=lambda spec: spec,
    make=_make,
    check=check_speech_files,
)


@calculator("S2tCalculator")
class S2tCalculator(EngineCalculator, HttpCalculator):
    """LOOPBACK is needed for streams only; a graph without it answers whole."""

    runs_on = "loop"
    resource = SPEECH
    endpoints: ClassVar[Mapping[str, Decoder]] = ENDPOINTS

    http = Input("HTTP_REQUEST_PAYLOAD", HttpPayload)
    tick_in = Input("LOOPBACK", bool, optional=True)
    out: Output[HttpResponse | bytes] = Output("HTTP_RESPONSE_PAYLOAD", HttpResponse | bytes)
    tick_out = Output("LOOPBACK", bool, optional=True)
    speech = SidePacket("STT_NODE_RESOURCES", SpeechResource)

    def open(self, cc: Context) -> None:
        self.run: Transcription | None = None
        self.begun = False
        self.segments = 0  # that have been sent

    async def process(self, cc: Context) -> None:
        payload = cc[self.http]
        if payload is not None:
            self.request = await self._begin(cc, payload)
        assert self.run is not None, "LOOPBACK only ticks after a request"
        if not self.request.arguments.stream:
            while await self.run.next() is not None:
                pass
            body = whole_body(self.request, self.run.transcript)
            cc.send(self.out, HttpResponse(body, content_type(self.request), self._headers))
            return
        text = await self.run.next()
        cc.send(self.out, self._packet(self._events(text)))
        if text is not None:
            cc.send(self.tick_out, True)

    def close(self, cc: Context) -> None:
        if self.run is not None:
            self.run.close()

    async def _begin(self, cc: Context, payload: HttpPayload) -> Transcribe:
        speech = cc[self.speech]
        endpoint = ENDPOINTS.get(payload.endpoint)
        if endpoint is None:
            raise NotFound(f"{payload.endpoint!r} is not served by this graph; it has {', '.join(ENDPOINTS)}")
        request: Transcribe = endpoint.decode(payload.body)
        arguments = _checked(request.arguments, speech.model)
        if arguments.stream and not any(output.tag == self.tick_out.tag for output in cc.node.outputs):
            raise InvalidArgument.at(
                "stream", "streaming is not supported for this graph configuration (LOOPBACK not configured)"
            )
        file = payload.files.get(FILE)
        if file is None:
            raise InvalidArgument.at(FILE, "required, but missing: a part with a file name")
        speech.audio.check_size(file.size, FILE)
        session = speech.engine.session()
        try:
            recording = await speech.audio.load(file.path, FILE)
        except BaseException:
            session.close()
            raise
        self.run = Transcription(arguments, recording, session, speech.metrics)
        self._headers = ignored_header(request.ignored)
        return request

    def _events(self, text: str | None) -> bytes:
        """Return what is to be sent of a text, and at the end of the recording."""
        assert self.run is not None
        transcript = self.run.transcript
        events = delta_event(text) if text else b""
        if self.request.arguments.timestamps:
            events += segment_events(self.segments, transcript.segments[self.segments :])
            self.segments = len(transcript.segments)
        return events + (done_event(self.run.streamed) if text is None else b"")

    def _packet(self, events: bytes) -> HttpResponse | bytes:
        if self.begun:
            return events
        self.begun = True
        return HttpResponse(events, EVENT_STREAM, self._headers, more=True)


@calculator("SpeechModelCalculator")
class SpeechModel(EngineCalculator):
    """It has no streams: its options name the model that transcribes audio in the chats of its graph."""

    runs_on = "loop"
    resource = SPEECH

    speech = SidePacket("STT_NODE_RESOURCES", SpeechResource)

    def process(self, cc: Context) -> None:
        """Never called: there are no streams."""


def _checked(arguments: TranscribeArguments, model: SpeechFacts) -> TranscribeArguments:
    """Return them with the model's code of the language.

    Raises InvalidArgument for what the model does not have.
    """
    if arguments.words and not model.word_timestamps:
        raise InvalidArgument.at(
            "timestamp_granularities",
            "word timestamps are not supported for this model: its graph has no enable_word_timestamps",
        )
    if arguments.translate and not model.multilingual:
        raise InvalidArgument.at("model", "it knows English only and cannot translate")
    if not arguments.language:
        return arguments
    code = language_code(arguments.language, model.languages, multilingual=model.multilingual)
    return msgspec.structs.replace(arguments, language=code)
