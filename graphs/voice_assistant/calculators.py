"""A voice assistant of three nodes: Listen hears the question, Think answers it, Speak says the answer.

Each holds its model as the shipped node of its kind does. Text goes from Think to Speak by whole sentences,
so the first one is heard while the model still writes the next. When the client leaves, all are cancelled.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, ClassVar

import msgspec

from ovserve.api.openai.audio.transcriptions import TRANSCRIPTIONS, AudioEndpoint
from ovserve.api.openai.body import decode_body
from ovserve.calculators.llm_resource import LlmCalculator, LlmResources
from ovserve.calculators.payload import Decoder, HttpCalculator, HttpPayload, HttpResponse
from ovserve.calculators.resource import EngineCalculator, ItemStream
from ovserve.calculators.speech_to_text import SPEECH
from ovserve.calculators.speech_to_text import SpeechResource as Ears
from ovserve.calculators.text_to_speech import SPEAKER
from ovserve.calculators.text_to_speech import SpeechResource as Mouth
from ovserve.calculators.transcription import Transcription
from ovserve.engine.protocol.text_to_speech import SPEAK, SpeakArguments, Spoken
from ovserve.errors import InvalidArgument
from ovserve.graph import Context, Input, Output, SidePacket, calculator
from ovserve.llm.sentences import complete, speakable

PATH = "audio/assistant"
SYSTEM = "You are a voice assistant. Answer in one or two short sentences, without lists or symbols."
MOST_TOKENS = 200


class Form(msgspec.Struct, kw_only=True):
    """The fields of the form, besides its file."""

    model: str
    file: str
    voice: str | None = None
    instructions: str | None = None  # the system message


_form = msgspec.json.Decoder(Form)


class Question(msgspec.Struct):
    """The request with the text of its recording."""

    text: str
    asked: Form


class Sentence(msgspec.Struct):
    """A part of the answer. The first one has the question, the last one no text."""

    question: Question
    text: str = ""


class AssistantEndpoint:
    name = PATH

    def decode(self, body: bytes) -> Form:
        """Raises InvalidArgument naming the field."""
        return decode_body(body, _form)[0]


@calculator("ListenCalculator")
class Listen(EngineCalculator, HttpCalculator):
    runs_on = "loop"
    resource = SPEECH
    endpoints: ClassVar[Mapping[str, Decoder]] = {PATH: AssistantEndpoint()}

    http = Input("HTTP_REQUEST_PAYLOAD", HttpPayload)
    question = Output("QUESTION", Question)
    ears = SidePacket("STT_NODE_RESOURCES", Ears)

    async def process(self, cc: Context) -> None:
        payload, ears = cc[self.http], cc[self.ears]
        if payload is None:
            return
        asked = AssistantEndpoint().decode(payload.body)
        file = payload.files.get("file")
        if file is None:
            raise InvalidArgument(
                "file: required, but missing: a part of the form with a file name", param="file"
            )
        # What a transcription would be asked for, without any option.
        plain = AudioEndpoint(TRANSCRIPTIONS).decode(
            msgspec.json.encode({"model": asked.model, "file": "file"})
        )
        session = ears.engine.session()
        try:
            recording = await ears.audio.load(file.path, "file")
        except BaseException:
            session.close()
            raise
        run = Transcription(plain, "", recording, session, ears.metrics)
        try:
            while await run.next() is not None:
                pass
        finally:
            run.close()
        text = run.streamed.strip()
        if not speakable(text):
            raise InvalidArgument("file: no speech was found in it", param="file")
        cc.send(self.question, Question(text, asked))


@calculator("ThinkCalculator")
class Think(LlmCalculator):
    runs_on = "loop"

    question = Input("QUESTION", Question)
    sentence = Output("SENTENCE", Sentence)
    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)

    async def process(self, cc: Context) -> None:
        question = cc[self.question]
        if question is None:
            return
        system = question.asked.instructions or SYSTEM
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question.text}]
        at, text = cc.timestamp, ""
        async with aclosing(cc[self.llm].stream(messages, max_tokens=MOST_TOKENS)) as packets:
            async for parsed in packets:
                done, text = complete(text + parsed.content)
                if parsed.last:
                    done, text = done + text, ""
                if speakable(done):
                    cc.send(self.sentence, Sentence(question, done.strip()), at)
                    at += 1
                    await cc.flush()
        cc.send(self.sentence, Sentence(question), at)


@calculator("SpeakCalculator")
class Speak(EngineCalculator):
    """Sends events: the question, then the text and the audio of each sentence."""

    runs_on = "loop"
    resource = SPEAKER

    sentence = Input("SENTENCE", Sentence)
    response: Output[HttpResponse | bytes] = Output("HTTP_RESPONSE_PAYLOAD", HttpResponse | bytes)
    mouth = SidePacket("TTS_NODE_RESOURCES", Mouth)

    def open(self, cc: Context) -> None:
        self.at = 0  # of the next packet: there are more events than sentences
        self.seconds = 0.0
        self.said: list[str] = []
        self.stream: ItemStream | None = None

    async def process(self, cc: Context) -> None:
        given = cc[self.sentence]
        if given is None:
            return
        mouth = cc[self.mouth]
        voice = mouth.voices.find(given.question.asked.voice)
        if not self.at:
            self._event(cc, {"type": "assistant.question", "text": given.question.text})
            await cc.flush()
        if not given.text:
            done = {
                "type": "assistant.done",
                "text": " ".join(self.said),
                "audio_seconds": round(self.seconds, 2),
            }
            self._event(cc, done)
            return
        self.said.append(given.text)
        self._event(cc, {"type": "assistant.text", "text": given.text})
        await cc.flush()
        language = mouth.voices.language(None, voice)
        self.stream = await mouth.engine.call(SPEAK, SpeakArguments(given.text, voice, language))
        while (item := await self.stream.next()) is not None:
            spoken: Spoken = item.decode(Spoken)
            if not spoken.text:
                continue
            self.seconds += spoken.audio_seconds
            mouth.metrics.spoke(len(spoken.text), spoken.audio_seconds, spoken.seconds, spoken.waited)
            audio = base64.b64encode(b"".join(item.blobs)).decode()
            rate = mouth.model.sample_rate
            self._event(cc, {"type": "assistant.audio", "format": "pcm_s16le", "rate": rate, "audio": audio})
            await cc.flush()

    def _event(self, cc: Context, event: dict[str, Any]) -> None:
        data = b"data: " + msgspec.json.encode(event) + b"\n\n"
        first = HttpResponse(data, "text/event-stream", more=True) if not self.at else data
        self.at = max(self.at, cc.timestamp)
        cc.send(self.response, first, self.at)
        self.at += 1

    def close(self, cc: Context) -> None:
        if self.stream is not None:
            self.stream.cancel()  # no effect on one that has ended
