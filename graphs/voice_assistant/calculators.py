"""A voice assistant of three nodes: Listen hears the question, Think answers it, Speak says the answer.

Each holds its model as the shipped node of its kind does. Text goes from Think to Speak by whole sentences,
so the first one is heard while the model still writes the next. When the client leaves, all are cancelled.
The tools that Think may call are in tools.py.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from contextlib import aclosing
from typing import Annotated, Any, ClassVar

import msgspec
from tools import AssistantTools

from ovserve.api.openai.body import decode_body
from ovserve.calculators.library import ConversationMemory, Toolbox, ToolResult, answer_with_tools
from ovserve.errors import InvalidArgument, PayloadTooLarge
from ovserve.graph import Context, Input, Output, SidePacket, calculator
from ovserve.kinds.payload import Decoder, HttpCalculator, HttpPayload, HttpResponse, ignored_header
from ovserve.kinds.resource import EngineCalculator
from ovserve.kinds.speech.api import TRANSCRIPTIONS, AudioEndpoint
from ovserve.kinds.speech.languages import language_code
from ovserve.kinds.speech.node import SPEECH
from ovserve.kinds.speech.node import SpeechResource as Ears
from ovserve.kinds.speech.transcription import Transcription
from ovserve.kinds.text.resource import LlmCalculator, LlmResources
from ovserve.kinds.voice.node import SPEAKER, speak
from ovserve.kinds.voice.node import SpeechResource as Mouth
from ovserve.llm.sentences import complete, speakable

__all__ = ["AssistantTools"]

PATH = "audio/assistant"
SYSTEM = "You are a friendly voice assistant. Answer in one short sentence of plain words."
NOTHING = "I have no answer to that."  # where the model said nothing
MOST_TOKENS = 200  # of one round

Id = Annotated[str, msgspec.Meta(pattern=r"^[\w.:-]{1,100}$")]
Event = dict[str, Any]


class Form(msgspec.Struct, kw_only=True):
    """The fields of the form."""

    model: str
    file: str = ""
    voice: str | None = None
    language: str = ""  # of the question; found in the audio if absent
    instructions: str = ""  # the system message
    conversation: Id | None = None  # of earlier turns; a new one if absent


_form = msgspec.json.Decoder(Form)


class Asked(msgspec.Struct, frozen=True):
    """The request, and after its recording has been heard the question."""

    form: Form
    conversation: str
    voice: str
    ignored: tuple[str, ...]  # unknown fields, named in a header
    text: str = ""


class Part(msgspec.Struct, frozen=True):
    """One event of the answer; a `text` is to be spoken too."""

    asked: Asked
    event: Event
    text: str = ""


class AssistantEndpoint:
    name = PATH

    def decode(self, body: bytes) -> tuple[Form, tuple[str, ...]]:
        """Return the form and the names of unknown fields. Raises InvalidArgument naming the field."""
        form, ignored = decode_body(body, _form)
        return form, tuple(ignored)


@calculator("ListenCalculator")
class Listen(EngineCalculator, HttpCalculator):
    """Sends the request as soon as it is known to be right, and again with its question."""

    runs_on = "loop"
    resource = SPEECH
    endpoints: ClassVar[Mapping[str, Decoder]] = {PATH: AssistantEndpoint()}

    http = Input("HTTP_REQUEST_PAYLOAD", HttpPayload)
    asked = Output("ASKED", Asked)
    ears = SidePacket("STT_NODE_RESOURCES", Ears)
    mouth = SidePacket("TTS_NODE_RESOURCES", Mouth)

    def open(self, cc: Context) -> None:
        self.run: Transcription | None = None

    async def process(self, cc: Context) -> None:
        payload, ears = cc[self.http], cc[self.ears]
        if payload is None:
            return
        form, ignored = AssistantEndpoint().decode(payload.body)
        voice = cc[self.mouth].voices.find(form.voice)
        known = ears.model
        language = (
            language_code(form.language, known.languages, multilingual=known.multilingual)
            if form.language
            else ""
        )
        file = payload.files.get("file")
        if file is None:
            raise InvalidArgument(
                "file: required, but missing: a part of the form with a file name", param="file"
            )
        if file.size > ears.audio.bounds.bytes:
            raise PayloadTooLarge(f"file: expected at most {ears.audio.bounds.bytes} bytes, got {file.size}")
        # What a transcription would be asked for, without any option.
        plain = AudioEndpoint(TRANSCRIPTIONS).decode(
            msgspec.json.encode({"model": form.model, "file": "file"})
        )
        session = ears.engine.session()
        try:
            recording = await ears.audio.load(file.path, "file")
        except BaseException:
            session.close()
            raise
        self.run = Transcription(plain, language, recording, session, ears.metrics)
        asked = Asked(form, form.conversation or f"conv_{secrets.token_hex(12)}", voice, ignored)
        cc.send(self.asked, asked)
        await cc.flush()
        while await self.run.next() is not None:
            pass
        text = self.run.streamed.strip()
        if not speakable(text):
            raise InvalidArgument("file: no speech was found in it", param="file")
        cc.send(self.asked, msgspec.structs.replace(asked, text=text), cc.timestamp + 1)

    def close(self, cc: Context) -> None:
        if self.run is not None:
            self.run.close()


@calculator("ThinkCalculator")
class Think(LlmCalculator):
    """Remembers the question and as much of the answer as was sent, also of one that was cut off."""

    runs_on = "loop"

    asked = Input("ASKED", Asked)
    part = Output("PART", Part)
    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)
    tools = SidePacket("TOOLS", Toolbox, optional=True)
    memory = SidePacket("MEMORY", ConversationMemory, optional=True)

    def open(self, cc: Context) -> None:
        self.at = 0  # of the next packet
        self.question: Asked | None = None
        self.said: list[str] = []

    async def process(self, cc: Context) -> None:
        asked = cc[self.asked]
        if asked is None:
            return
        memory: ConversationMemory | None = cc[self.memory]
        turns = memory.turns(asked.conversation) if memory is not None else ()
        if not asked.text:
            event = {"type": "assistant.started", "conversation": asked.conversation, "turns": len(turns)}
            await self._send(cc, Part(asked, event))
            return
        self.question = asked
        await self._send(cc, Part(asked, {"type": "assistant.question", "text": asked.text}))
        messages = [{"role": "system", "content": asked.form.instructions or SYSTEM}]
        for turn in turns:
            messages.append({"role": "user", "content": turn.question})
            messages.append({"role": "assistant", "content": turn.answer})
        messages.append({"role": "user", "content": asked.text})
        await self._answer(cc, asked, messages)
        if not self.said:
            await self._say(cc, asked, NOTHING)
        await self._send(cc, Part(asked, {"type": "assistant.done", "text": " ".join(self.said)}))

    async def _answer(self, cc: Context, asked: Asked, messages: list[dict[str, str]]) -> None:
        text = ""
        parts = answer_with_tools(cc[self.llm], messages, cc[self.tools], max_tokens=MOST_TOKENS)
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, ToolResult):
                    await self._send(cc, Part(asked, _tool_event(part)))
                    continue
                done, text = complete(text + part.content)
                if part.last:
                    done, text = done + text, ""
                if speakable(done):
                    await self._say(cc, asked, done.strip())

    async def _say(self, cc: Context, asked: Asked, text: str) -> None:
        self.said.append(text)
        await self._send(cc, Part(asked, {"type": "assistant.text", "text": text}, text))

    async def _send(self, cc: Context, part: Part) -> None:
        self.at = max(self.at, cc.timestamp)
        cc.send(self.part, part, self.at)
        self.at += 1
        await cc.flush()

    def close(self, cc: Context) -> None:
        memory: ConversationMemory | None = cc[self.memory]
        if memory is not None and self.question is not None and self.said:
            memory.add(self.question.conversation, self.question.text, " ".join(self.said))


@calculator("SpeakCalculator")
class Speak(EngineCalculator):
    """Sends the events, and the audio after each text."""

    runs_on = "loop"
    resource = SPEAKER

    part = Input("PART", Part)
    response: Output[HttpResponse | bytes] = Output("HTTP_RESPONSE_PAYLOAD", HttpResponse | bytes)
    mouth = SidePacket("TTS_NODE_RESOURCES", Mouth)

    def open(self, cc: Context) -> None:
        self.at = 0  # of the next packet: there are more events than parts
        self.seconds = 0.0

    async def process(self, cc: Context) -> None:
        part = cc[self.part]
        if part is None:
            return
        last = part.event["type"] == "assistant.done"
        self.ignored = part.asked.ignored
        await self._send(cc, part.event | {"audio_seconds": round(self.seconds, 2)} if last else part.event)
        if part.text:
            await self._speak(cc, part.text, part.asked.voice)

    async def _speak(self, cc: Context, text: str, voice: str) -> None:
        mouth = cc[self.mouth]
        parts = speak(mouth, text, voice)
        async with aclosing(parts):
            async for spoken, samples in parts:
                self.seconds += spoken.audio_seconds
                audio = base64.b64encode(samples).decode()
                rate = mouth.model.sample_rate
                await self._send(
                    cc, {"type": "assistant.audio", "format": "pcm_s16le", "rate": rate, "audio": audio}
                )

    async def _send(self, cc: Context, event: Event) -> None:
        data = b"data: " + msgspec.json.encode(event) + b"\n\n"
        headers = ignored_header(self.ignored)
        first = HttpResponse(data, "text/event-stream", headers, more=True) if not self.at else data
        self.at = max(self.at, cc.timestamp)
        cc.send(self.response, first, self.at)
        self.at += 1
        await cc.flush()


def _tool_event(result: ToolResult) -> Event:
    call = result.call
    return {
        "type": "assistant.tool",
        "name": call.name,
        "arguments": call.arguments,
        "output": result.output,
        "failed": result.failed,
        "seconds": round(result.seconds, 3),
    }
