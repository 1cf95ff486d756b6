"""The nodes of a realtime graph that hear and speak.

| calculator | reads | writes |
|---|---|---|
| `VoiceActivityCalculator` | `SOUND` | `ACTIVITY`: the probability of speech in each 32 ms |
| `RealtimeTranscribeCalculator` | `UTTERANCE` | `TRANSCRIPT` |
| `RealtimeSpeakCalculator` | `ANSWER` | `ANSWER`: text that is to be heard comes by sentences, with audio |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing

import msgspec
from google.protobuf.struct_pb2 import Struct

from ovserve.api.openai.realtime.packets import Activity, Answer, Manner, Run, Sound, Transcript, Utterance
from ovserve.calculators.realtime import Sequel, unless_cancelled
from ovserve.engine.client.calls import CallClient
from ovserve.errors import OvserveError
from ovserve.graph import Context, Input, Node, Output, SidePacket, calculator
from ovserve.kinds.resource import Caller, EngineCalculator, Host, ResourceKind, parse_isolation
from ovserve.kinds.speech.node import SPEECH, Transcription
from ovserve.kinds.speech.node import SpeechResource as Ears
from ovserve.kinds.speech.spec import ACTIVITY, VAD_FRAME, VAD_MODEL, TranscribeArguments, VoiceActivitySpec
from ovserve.kinds.voice.node import SPEAKER, speak
from ovserve.kinds.voice.node import SpeechResource as Mouth
from ovserve.llm.audio import SAMPLE_BYTES, SAMPLES_PER_SECOND
from ovserve.llm.sentences import complete, first_clause, speakable

FRAME_BYTES = VAD_FRAME * SAMPLE_BYTES
FEWEST_FRAMES = 3  # of a call: single frames cost 12.7 times the processor time of one call for all
MOST_FRAMES = 1024  # of a call: 33 s
OPTIONS = ("isolation",)


class VoiceActivityResource(msgspec.Struct, frozen=True):
    """The side packet of the nodes that share an engine."""

    engine: Caller

    def facts(self) -> Mapping[str, object]:
        return {}


def _parse(node: Node) -> VoiceActivitySpec:
    options = dict(node.options(Struct) or {})
    for name in options.keys() - set(OPTIONS):
        raise node.error(f"unknown; there is {', '.join(OPTIONS)}", name)
    return VoiceActivitySpec(
        str(VAD_MODEL), isolation=parse_isolation(node, str(options.get("isolation", "")))
    )


async def _make(node: Node, spec: VoiceActivitySpec, engine: CallClient, host: Host) -> VoiceActivityResource:
    return VoiceActivityResource(host.admit_calls(engine, {}))


VOICE_ACTIVITY = ResourceKind(
    tag="VAD_NODE_RESOURCES",
    packet_type=VoiceActivityResource,
    options_type=Struct,
    parse=_parse,
    spec=lambda spec: spec,
    make=_make,
)


@calculator("VoiceActivityCalculator")
class VoiceActivityCalculator(EngineCalculator):
    """Looks at audio frame by frame. The state of the stream travels with each call, so an engine that was
    replaced goes on with it."""

    runs_on = "loop"
    resource = VOICE_ACTIVITY

    sound = Input("SOUND", Sound)
    activity = Output("ACTIVITY", Activity)
    voice = SidePacket("VAD_NODE_RESOURCES", VoiceActivityResource)

    def open(self, cc: Context) -> None:
        self.state = b""
        self.rest = bytearray()  # less than a call's worth

    async def process(self, cc: Context) -> None:
        sound = cc[self.sound]
        if sound is None:
            return
        self.rest += sound.audio
        frames = len(self.rest) // FRAME_BYTES
        if frames < FEWEST_FRAMES and not sound.last:
            return
        probabilities: list[float] = []
        error: OvserveError | None = None
        try:
            while frames and error is None:
                count = min(frames, MOST_FRAMES)
                probabilities += await self._look(cc, bytes(self.rest[: count * FRAME_BYTES]))
                del self.rest[: count * FRAME_BYTES]
                frames -= count
        except OvserveError as exc:
            error, self.state, self.rest = exc, b"", bytearray()
        end = sound.end - len(self.rest) // SAMPLE_BYTES
        cc.send(self.activity, Activity(tuple(probabilities), end, error))

    async def _look(self, cc: Context, audio: bytes) -> list[float]:
        item = await cc[self.voice].engine.one(ACTIVITY, None, (audio, self.state))
        self.state = bytes(item.blobs[0])
        values: list[float] = item.decode()
        return values


class _Clip:
    """Samples in memory, in the form of a `Recording`."""

    def __init__(self, audio: bytes) -> None:
        self._audio = audio
        self.samples = len(audio) // SAMPLE_BYTES
        self._closed = False

    @property
    def seconds(self) -> float:
        return self.samples / SAMPLES_PER_SECOND

    @property
    def closed(self) -> bool:
        return self._closed

    def read(self, begin: int, count: int) -> bytes:
        return self._audio[begin * SAMPLE_BYTES : (begin + count) * SAMPLE_BYTES]

    def close(self) -> None:
        self._closed = True


@calculator("RealtimeTranscribeCalculator")
class RealtimeTranscribeCalculator(EngineCalculator):
    """Writes utterances down, one after another, text by text as the model finds it."""

    runs_on = "loop"
    resource = SPEECH

    utterance = Input("UTTERANCE", Utterance)
    transcript = Output("TRANSCRIPT", Transcript)
    ears = SidePacket("STT_NODE_RESOURCES", Ears)

    def open(self, cc: Context) -> None:
        self.out = Sequel(self.transcript)

    async def process(self, cc: Context) -> None:
        utterance = cc[self.utterance]
        if utterance is not None:
            await unless_cancelled(utterance.run, lambda: self._write_down(cc, utterance))

    async def _write_down(self, cc: Context, utterance: Utterance) -> None:
        ears = cc[self.ears]
        if not utterance.audio:
            await self.out.send(cc, Transcript(utterance.run, last=True))
            return
        try:
            audio = utterance.audio
            samples = _Clip(audio) if isinstance(audio, bytes) else audio
            arguments = TranscribeArguments(
                language=utterance.language,
                prompt=utterance.prompt,
                hotwords=utterance.hotwords,
                stream=True,
            )
            work = Transcription(arguments, samples, ears.engine.session(), ears.metrics)
            try:
                while (text := await work.next()) is not None:
                    await self.out.send(cc, Transcript(utterance.run, text))
            finally:
                work.close()
        except OvserveError as error:
            await self.out.send(cc, Transcript(utterance.run, last=True, error=error))
        else:
            await self.out.send(cc, Transcript(utterance.run, last=True))


@calculator("RealtimeSpeakCalculator")
class RealtimeSpeakCalculator(EngineCalculator):
    """Speaks an answer by sentences, the first one by its first clause; text that is only read passes."""

    runs_on = "loop"
    resource = SPEAKER

    answer = Input("ANSWER", Answer)
    spoken = Output("ANSWER", Answer)
    mouth = SidePacket("TTS_NODE_RESOURCES", Mouth)

    def open(self, cc: Context) -> None:
        self.out = Sequel(self.spoken)
        self.run: Run | None = None
        self.text = ""  # that was not spoken yet
        self.begun = False  # something was
        self.joins = True  # the next audio begins at once: the first one, and after a cut within a clause

    async def process(self, cc: Context) -> None:
        answer = cc[self.answer]
        if answer is None or answer.run.cancelled:
            return
        if (manner := answer.manner) is None:
            await self.out.send(cc, answer)
            return
        await unless_cancelled(answer.run, lambda: self._speak(cc, answer, manner))

    async def _speak(self, cc: Context, answer: Answer, manner: Manner) -> None:
        if self.run is not answer.run:
            self.run, self.text, self.begun, self.joins = answer.run, "", False, True
            self.encode: Callable[[bytes, bool], bytes] = _mouth(cc[self.mouth].model.sample_rate, manner)
        ready, self.text = complete(self.text + answer.text)
        goes_on = False
        if answer.last or answer.result is not None:
            ready, self.text = ready + self.text, ""
        elif not ready and not self.begun:
            ready, self.text = first_clause(self.text)
            goes_on = ready.rstrip()[-1:].isalnum()
        try:
            if speakable(ready):
                if self.begun:
                    await answer.run.sure.wait()  # of an early answer only the beginning is spoken
                self.begun = True
                await self._say(cc, answer, manner, ready, goes_on)
            elif ready and self.begun:
                await self.out.send(
                    cc, msgspec.structs.replace(answer, text=ready, calls=(), result=None, last=False)
                )
            if answer.result is not None:
                await self.out.send(cc, msgspec.structs.replace(answer, text=""))
            if answer.last:
                rest = self.encode(b"", True) if self.begun else b""
                await self.out.send(cc, msgspec.structs.replace(answer, text="", audio=rest))
        except OvserveError as error:
            last = Answer(answer.run, manner=manner, last=True, tokens=answer.tokens, error=error)
            await self.out.send(cc, last)

    async def _say(self, cc: Context, answer: Answer, manner: Manner, text: str, goes_on: bool) -> None:
        """Send each sentence with its audio. The sentences that are spoken are the text in other blanks."""
        from ovserve.calculators.realtime_codec import without_silence  # numpy, as below

        parts = speak(cc[self.mouth], f"{text.rstrip()}," if goes_on else text, manner.voice, manner.speed)
        caption, rate = text, cc[self.mouth].model.sample_rate
        async with aclosing(parts):
            async for _, audio in parts:
                if self.joins or goes_on:
                    audio = without_silence(audio, rate, begin=self.joins, end=goes_on)
                self.joins = goes_on
                data = self.encode(audio, False)
                part = Answer(answer.run, caption, audio=data, manner=manner, tokens=answer.tokens)
                await self.out.send(cc, part)
                caption = ""


def _mouth(rate: int, manner: Manner) -> Callable[[bytes, bool], bytes]:
    from ovserve.calculators.realtime_codec import mouth  # numpy and soxr, which text sessions do not need

    return mouth(rate, manner.format)
