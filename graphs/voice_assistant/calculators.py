"""A voice assistant before the nodes of graphs/realtime: a recording in, events with the spoken answer out.

Assistant reads the form, and turns what Transcribe, Think and Speak send back into events. NeverSilent stands
between Think and Speak, as a node of yours may. When the client leaves, all of them are cancelled. The tools
that Think may call are in tools.py.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from tools import AssistantTools

from ovserve.api.openai.body import decode_body
from ovserve.api.openai.realtime.config import Pcm
from ovserve.api.openai.realtime.packets import Answer, Manner, Prompt, Run, Samples, Transcript, Utterance
from ovserve.calculators.library import ConversationMemory, ToolResult
from ovserve.calculators.realtime import Sequel
from ovserve.errors import InvalidArgument, PayloadTooLarge
from ovserve.graph import Calculator, Context, Input, Output, SidePacket, calculator
from ovserve.kinds.payload import Decoder, HttpCalculator, HttpPayload, HttpResponse, ignored_header
from ovserve.kinds.speech.languages import language_code
from ovserve.kinds.speech.node import SpeechResource as Ears
from ovserve.kinds.voice.node import SpeechResource as Mouth
from ovserve.llm.sentences import speakable

__all__ = ["AssistantTools"]

PATH = "audio/assistant"
SYSTEM = "You are a friendly voice assistant. Answer in one short sentence of plain words."
NOTHING = "I have no answer to that."  # where the model said nothing
MAX_ROUND_TOKENS = 200
SPOKEN_RATE = 24_000  # samples per second, of 16 bits

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


class AssistantEndpoint:
    name = PATH

    def decode(self, body: bytes) -> tuple[Form, tuple[str, ...]]:
        """Return the form and the names of unknown fields. Raises InvalidArgument naming the field."""
        form, ignored = decode_body(body, _form)
        return form, tuple(ignored)


@calculator("AssistantCalculator")
class Assistant(HttpCalculator):
    """Remembers the question and as much of the answer as was sent, also of one that was cut off."""

    runs_on = "loop"
    immediate = True
    endpoints: ClassVar[Mapping[str, Decoder]] = {PATH: AssistantEndpoint()}

    http = Input("HTTP_REQUEST_PAYLOAD", HttpPayload)
    transcript = Input("TRANSCRIPT", Transcript)
    answer = Input("ANSWER", Answer)
    response: Output[HttpResponse | bytes] = Output("HTTP_RESPONSE_PAYLOAD", HttpResponse | bytes)
    utterance = Output("UTTERANCE", Utterance)
    prompt = Output("PROMPT", Prompt)
    ears = SidePacket("STT_NODE_RESOURCES", Ears)
    mouth = SidePacket("TTS_NODE_RESOURCES", Mouth)
    memory = SidePacket("MEMORY", ConversationMemory, optional=True)

    def open(self, cc: Context) -> None:
        self.out = Sequel(self.response)
        self.begun = False
        self.recording: Samples | None = None
        self.question = ""
        self.texts: list[str] = []  # of the answer
        self.seconds = 0.0  # of its speech

    async def process(self, cc: Context) -> None:
        if (payload := cc[self.http]) is not None:
            await self._hear(cc, payload)
        elif (transcript := cc[self.transcript]) is not None:
            await self._think(cc, transcript)
        elif (answer := cc[self.answer]) is not None:
            await self._say(cc, answer)

    async def _hear(self, cc: Context, payload: HttpPayload) -> None:
        ears = cc[self.ears]
        self.form, self.ignored = AssistantEndpoint().decode(payload.body)
        self.voice, model = cc[self.mouth].voices.find(self.form.voice), ears.model
        language = self.form.language
        if language:
            language = language_code(language, model.languages, multilingual=model.multilingual)
        file, most = payload.files.get("file"), ears.audio.bounds.bytes
        if file is None:
            raise InvalidArgument(
                "file: required, but missing: a part of the form with a file name", param="file"
            )
        if file.size > most:
            raise PayloadTooLarge(f"file: expected at most {most} bytes, got {file.size}")
        session = ears.engine.session()  # a full engine refuses before a long recording is decoded
        try:
            self.recording = await ears.audio.load(file.path, "file")
        finally:
            session.close()  # Transcribe begins its own
        cc.send(self.utterance, Utterance(Run("question"), self.recording, language))

    async def _think(self, cc: Context, transcript: Transcript) -> None:
        if transcript.error is not None:
            raise transcript.error
        self.question += transcript.text
        if not self.begun and speakable(self.question):  # what fails before still has its status
            self.conversation = self.form.conversation or f"conv_{secrets.token_hex(12)}"
            memory: ConversationMemory | None = cc[self.memory]
            self.turns = memory.turns(self.conversation) if memory is not None else ()
            await self._send(cc, "started", conversation=self.conversation, turns=len(self.turns))
        if not transcript.last:
            return
        if not self.begun:
            raise InvalidArgument("file: no speech was found in it", param="file")
        self.question = self.question.strip()
        await self._send(cc, "question", text=self.question)
        messages = [{"role": "system", "content": self.form.instructions or SYSTEM}]
        for turn in self.turns:
            messages.append({"role": "user", "content": turn.question})
            messages.append({"role": "assistant", "content": turn.answer})
        messages.append({"role": "user", "content": self.question})
        manner = Manner(self.voice, 1.0, Pcm())
        cc.send(self.prompt, Prompt(Run("answer"), messages, None, MAX_ROUND_TOKENS, manner=manner))

    async def _say(self, cc: Context, answer: Answer) -> None:
        if answer.error is not None:
            raise answer.error
        if text := answer.text.strip():
            self.texts.append(text)
            await self._send(cc, "text", text=text)
        if answer.audio:
            self.seconds += len(answer.audio) / 2 / SPOKEN_RATE
            audio = base64.b64encode(answer.audio).decode()
            await self._send(cc, "audio", format="pcm_s16le", rate=SPOKEN_RATE, audio=audio)
        if answer.result is not None:
            await self._send(cc, "tool", **_described(answer.result))
        if answer.last:
            text = " ".join(self.texts)
            await self._send(cc, "done", text=text, audio_seconds=round(self.seconds, 2))

    async def _send(self, cc: Context, kind: str, **fields: Any) -> None:
        data = b"data: " + msgspec.json.encode({"type": f"assistant.{kind}", **fields}) + b"\n\n"
        headers = ignored_header(self.ignored)
        first = HttpResponse(data, "text/event-stream", headers, more=True) if not self.begun else data
        self.begun = True
        await self.out.send(cc, first)

    def close(self, cc: Context) -> None:
        if self.recording is not None:
            self.recording.close()  # Transcribe has not, if it was refused or never began
        memory: ConversationMemory | None = cc[self.memory]
        if memory is not None and self.texts:
            memory.add(self.conversation, self.question, " ".join(self.texts))


@calculator("NeverSilentCalculator")
class NeverSilent(Calculator):
    """Lets an answer without text say that there is none."""

    runs_on = "loop"

    answer = Input("ANSWER", Answer)
    spoken = Output("ANSWER", Answer)

    def open(self, cc: Context) -> None:
        self.out = Sequel(self.spoken)
        self.silent = True

    async def process(self, cc: Context) -> None:
        if (answer := cc[self.answer]) is None:
            return
        self.silent = self.silent and not speakable(answer.text)
        if answer.last and self.silent and answer.error is None:
            await self.out.send(cc, Answer(answer.run, NOTHING, manner=answer.manner))
        await self.out.send(cc, answer)


def _described(result: ToolResult) -> Event:
    return {
        "name": result.call.name,
        "arguments": result.call.arguments,
        "output": result.output,
        "failed": result.failed,
        "seconds": round(result.seconds, 3),
    }
