"""The nodes of a realtime graph that need no audio: the session, and the language model.

| calculator | reads | writes |
|---|---|---|
| `RealtimeSessionCalculator` | `HTTP_REQUEST_PAYLOAD`, and by back edges `ACTIVITY`, `TRANSCRIPT`, `ANSWER` | `HTTP_RESPONSE_PAYLOAD`, `SOUND`, `UTTERANCE`, `PROMPT` |
| `RealtimeThinkCalculator` | `PROMPT` | `ANSWER` |

The graph runs once for each connection. The first payload is the handshake, each further one an event of the
client; each packet of the answer is an event of the server. A session can do what its graph has nodes for.
"""  # noqa: E501  a table

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Annotated, Any, ClassVar

import msgspec

from ovserve.api.openai.common import REPETITION
from ovserve.api.openai.realtime.config import Abilities, Format
from ovserve.api.openai.realtime.packets import (
    Activity,
    Answer,
    Prompt,
    Run,
    Sound,
    Tokens,
    Transcript,
    Utterance,
)
from ovserve.api.openai.realtime.response import Ear
from ovserve.api.openai.realtime.session import RealtimeSession
from ovserve.calculators.library.server_tools import Toolbox, answer_with_tools
from ovserve.errors import ContextLengthExceeded, InvalidArgument, Overloaded, OvserveError
from ovserve.graph import Context, Input, LoadContext, Output, SidePacket, calculator
from ovserve.kinds.payload import Decoder, HttpCalculator, HttpPayload, HttpResponse
from ovserve.kinds.speech.languages import language_code
from ovserve.kinds.speech.node import SpeechResource as Ears
from ovserve.kinds.text.resource import LlmCalculator, LlmResources
from ovserve.kinds.voice.node import SpeechResource as Mouth
from ovserve.llm.output import Completion, ToolResult
from ovserve.llm.request import GREEDY_TEMPERATURE, Sampling

REALTIME = "realtime"  # the endpoint
RETRY_SECONDS = 10.0


class SessionOptions(msgspec.Struct, frozen=True):
    max_sessions: Annotated[int, msgspec.Meta(ge=1)] = 100  # at the same time
    early_answers: bool = True  # begun in a pause, in case the turn ends there


class OpenSessions:
    def __init__(self) -> None:
        self.count = 0


class Handshake(msgspec.Struct):
    model: str
    session: dict[str, Any] = {}


class RealtimeEndpoint:
    name = REALTIME

    def decode(self, body: bytes) -> Handshake:
        return msgspec.json.decode(body, type=Handshake)


class Sequel:
    """The packets of an output that has more of them than the node gets: each has the next timestamp."""

    def __init__(self, port: Output[Any]) -> None:
        self._port, self._at = port, 0

    async def send(self, cc: Context, value: Any) -> None:
        self._at = max(self._at, cc.timestamp)
        cc.send(self._port, value, self._at)
        self._at += 1
        await cc.flush()


async def unless_cancelled(run: Run, work: Callable[[], Awaitable[None]]) -> None:
    """Do the work of a run; stop when the run is cancelled."""
    if run.cancelled:
        return
    task = asyncio.ensure_future(work())
    with run.ending(task.cancel):
        try:
            await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not run.cancelled or (current is not None and current.cancelling()):
                raise


@calculator("RealtimeSessionCalculator")
class RealtimeSessionCalculator(HttpCalculator):
    """Drives a `RealtimeSession`: packets go in one by one, and what it has to send goes out in order."""

    runs_on = "loop"
    immediate = True
    options_type = SessionOptions
    endpoints: ClassVar[Mapping[str, Decoder]] = {REALTIME: RealtimeEndpoint()}

    http = Input("HTTP_REQUEST_PAYLOAD", HttpPayload)
    activity = Input("ACTIVITY", Activity, optional=True)
    transcript = Input("TRANSCRIPT", Transcript, optional=True)
    answer = Input("ANSWER", Answer, optional=True)
    reply: Output[HttpResponse | bytes] = Output("HTTP_RESPONSE_PAYLOAD", HttpResponse | bytes)
    sound = Output("SOUND", Sound, optional=True)
    utterance = Output("UTTERANCE", Utterance, optional=True)
    prompt = Output("PROMPT", Prompt, optional=True)
    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources, optional=True)
    ears = SidePacket("STT_NODE_RESOURCES", Ears, optional=True)
    mouth = SidePacket("TTS_NODE_RESOURCES", Mouth, optional=True)

    @classmethod
    def load(cls, lc: LoadContext) -> OpenSessions:
        return OpenSessions()

    def open(self, cc: Context) -> None:
        self.session: RealtimeSession | None = None
        self.sent: dict[Any, int] = {}  # packets by port: their timestamps

    async def process(self, cc: Context) -> None:
        payload = cc[self.http]
        if self.session is None:
            assert payload is not None, "the other inputs only answer what the session sent"
            self.session = self._begin(cc, payload)
        elif payload is not None:
            self.session.on_event(payload.body)
        elif (answer := cc[self.answer]) is not None:
            self.session.on_answer(answer)
        elif (activity := cc[self.activity]) is not None:
            self.session.on_activity(activity)
        elif (transcript := cc[self.transcript]) is not None:
            self.session.on_transcript(transcript)
        await self._send(cc, self.session)

    def close(self, cc: Context) -> None:
        if self.session is not None:
            self.session.close()
            cc.state.count -= 1
            for name, number in self.session.counts.items():
                cc.count(name, number)

    def _begin(self, cc: Context, payload: HttpPayload) -> RealtimeSession:
        if payload.method != "GET":
            raise InvalidArgument(f"{payload.path} is a WebSocket: connect to it with GET and `Upgrade`")
        handshake = RealtimeEndpoint().decode(payload.body)
        session = RealtimeSession(self._abilities(cc, handshake.model), _ear)
        session.begin(handshake.session)
        most, open_ = cc.options(SessionOptions).max_sessions, cc.state
        if open_.count >= most:
            message = f"the server is overloaded: {open_.count} realtime sessions are open"
            raise Overloaded(message, cause="queue_full", retry_after=RETRY_SECONDS)
        open_.count += 1
        cc.count("sessions")
        return session

    def _abilities(self, cc: Context, model: str) -> Abilities:
        tags = {output.tag for output in cc.node.outputs}
        llm: LlmResources | None = cc[self.llm]
        ears: Ears | None = cc[self.ears]
        mouth: Mouth | None = cc[self.mouth]

        def language(code: str) -> str:
            if ears is None:
                return code
            return language_code(code, ears.model.languages, multilingual=ears.model.multilingual)

        return Abilities(
            model=model,
            hears=self.utterance.tag in tags,
            detects=self.sound.tag in tags,
            speaks=mouth is not None,
            voice=mouth.voices.find if mouth is not None else lambda name: name,
            default_voice=mouth.voices.default_name if mouth is not None else "",
            language=language,
            lacks_tools=llm.model.lacks_tools if llm is not None else None,
            thinks=self.prompt.tag in tags,
            answers_early=cc.options(SessionOptions).early_answers,
        )

    async def _send(self, cc: Context, session: RealtimeSession) -> None:
        """Send what the session has to send, each packet with a timestamp of its own."""
        ports: dict[type[Any], Output[Any]] = {
            Sound: self.sound,
            Utterance: self.utterance,
            Prompt: self.prompt,
        }
        for work in session.work:
            self._put(cc, ports[type(work)], work)
        for event in session.events:
            data = msgspec.json.encode(event)
            first = not self.sent.get(self.reply)
            self._put(cc, self.reply, HttpResponse(data, more=True) if first else data)
        session.work.clear()
        session.events.clear()
        await cc.flush()

    def _put(self, cc: Context, port: Output[Any], value: Any) -> None:
        at = self.sent.get(port, 0)
        cc.send(port, value, at)
        self.sent[port] = at + 1


def _ear(format_: Format) -> Ear:
    from ovserve.calculators.realtime_codec import ear  # numpy and soxr, which text sessions do not need

    return ear(format_)


@calculator("RealtimeThinkCalculator")
class RealtimeThinkCalculator(LlmCalculator):
    """Answers prompts one after another. Calls of the graph's own tools run here, unseen by the client."""

    runs_on = "loop"

    prompt = Input("PROMPT", Prompt)
    answer = Output("ANSWER", Answer)
    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)
    tools = SidePacket("TOOLS", Toolbox, optional=True)

    def open(self, cc: Context) -> None:
        self.out = Sequel(self.answer)

    async def process(self, cc: Context) -> None:
        prompt = cc[self.prompt]
        if prompt is not None:
            await unless_cancelled(prompt.run, lambda: self._think(cc, prompt))

    async def _think(self, cc: Context, prompt: Prompt) -> None:
        messages = prompt.messages
        try:
            while True:
                try:
                    return await self._answer(cc, prompt, messages)
                except ContextLengthExceeded:
                    shorter = without_oldest_turn(messages)
                    if not prompt.truncate or len(shorter) == len(messages):
                        raise
                    messages = shorter
        except OvserveError as error:
            await self.out.send(cc, Answer(prompt.run, manner=prompt.manner, last=True, error=error))

    async def _answer(self, cc: Context, prompt: Prompt, messages: list[dict[str, Any]]) -> None:
        total, round_ = Tokens(), Completion()
        tokens = total
        llm: LlmResources = cc[self.llm]
        sampling = Sampling(
            max_tokens=prompt.max_tokens,
            temperature=GREEDY_TEMPERATURE,
            repetition_detection=llm.model.repetition_detection,
        )
        parts = answer_with_tools(
            llm, messages, cc[self.tools], sampling=sampling, client=prompt.policy, sure=prompt.run.sure
        )
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, ToolResult):
                    result = Answer(prompt.run, manner=prompt.manner, tokens=tokens, result=part)
                    await self.out.send(cc, result)
                    continue
                round_.add(part)
                tokens = _sum(total, round_)
                if text := part.content:
                    await self.out.send(cc, Answer(prompt.run, text, manner=prompt.manner, tokens=tokens))
                if part.last:
                    choice, total, round_ = round_.choices[0], tokens, Completion()
        names = frozenset(prompt.policy.names) if prompt.policy is not None else frozenset()
        calls = tuple(call for call in choice.tool_calls if call.name in names)
        last = Answer(
            prompt.run,
            calls=calls,
            manner=prompt.manner,
            last=True,
            finish_reason=REPETITION if choice.repetitive else choice.finish_reason,
            tokens=total,
        )
        await self.out.send(cc, last)


def _sum(total: Tokens, round_: Completion) -> Tokens:
    return Tokens(
        total.read + round_.prompt_tokens,
        total.cached + (round_.cached_tokens or 0),
        total.written + round_.completion_tokens,
    )


def without_oldest_turn(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages without the oldest turn: all before the second message of a user, but the system's at
    the beginning. A call leaves with its output. The same messages if there is one turn only."""
    begin = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    users = [at for at in range(begin, len(messages)) if messages[at]["role"] == "user"]
    later = next((at for at in users if at > begin), None)
    return messages if later is None else messages[:begin] + messages[later:]
