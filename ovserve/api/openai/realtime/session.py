"""The state of a realtime session, and the one place that changes it.

Events of the client, activity, transcripts and answers come in, one after another; server events (`events`)
and packets for the models (`work`) come out. There is no I/O and no clock: time is that of the audio.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ovserve.api.openai.common import REPETITION, with_whole_characters
from ovserve.api.openai.realtime.config import (
    Abilities,
    AnyConfig,
    EventError,
    Format,
    ResponseConfig,
    SessionConfig,
    initial_config,
    response_config,
    updated,
)
from ovserve.api.openai.realtime.conversation import (
    Conversation,
    Item,
    Json,
    client_item,
    messages_of,
    new_id,
)
from ovserve.api.openai.realtime.listener import Listener, Work
from ovserve.api.openai.realtime.packets import Answer, Manner, Prompt, Run
from ovserve.api.openai.realtime.response import Ear, Response
from ovserve.errors import InvalidArgument, OvserveError, public, shortened

MAX_RESPONSES = 8  # in progress besides that of the conversation; they are generated one after another
MAX_VALUES = 50_000  # of a message: 300,000 tools held the event loop of all clients for a second
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)  # to the end if it has none
SESSION_SECONDS = 3600
NOT_ACTIVE = "response_cancel_not_active"
# The reason of a response, by its end.
CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Repetition(OvserveError):
    """The end of an answer for which OpenAI's types have no reason."""

    code = REPETITION


@dataclass
class EarlyAnswer:
    """The answer to a turn that may go on, begun in a pause. The client gets it when the turn has ended there
    and asks for the same prompt; else it never was."""

    prompt: Prompt
    answers: list[Answer] = field(default_factory=list)


class RealtimeSession:
    def __init__(self, abilities: Abilities, make_ear: Callable[[Format], Ear]) -> None:
        self.abilities = abilities
        self.id = new_id("sess")
        self.events: list[Json] = []
        self.work: list[Work] = []
        self.config: AnyConfig = initial_config(abilities)
        self.conversation = Conversation()
        self.active: Response | None = None  # of the conversation
        self.responses: dict[str, Response] = {}  # in progress, all of them
        self.counts: dict[str, int] = {}  # of responses by status, and of early answers
        self._expires = int(time.time() + SESSION_SECONDS)
        self._numbers = 0
        self._early: EarlyAnswer | None = None
        self._spoke = False  # audio was sent: the voice stays
        self._event_id: str | None = None  # of the client event that is being handled
        self._listener = Listener(self, make_ear)
        self.on_activity = self._listener.on_activity
        self.on_transcript = self._listener.on_transcript
        self._handlers: Mapping[str, Callable[[Json], None]] = {
            "session.update": self._update,
            "input_audio_buffer.append": self._listener.append,
            "input_audio_buffer.commit": self._listener.commit,
            "input_audio_buffer.clear": self._listener.clear,
            "conversation.item.create": self._create_item,
            "conversation.item.retrieve": self._retrieve,
            "conversation.item.delete": self._delete,
            "conversation.item.truncate": self._truncate,
            "response.create": self._create_response,
            "response.cancel": self._cancel_response,
            "output_audio_buffer.clear": self._no_webrtc,
        }

    # -- what comes in

    def begin(self, changes: Mapping[str, Any]) -> None:
        """Send `session.created`. `changes` are a configuration that was bound to the client's key."""
        if changes:
            self._set_config(updated(self.config, changes, self.abilities))
        self.emit("session.created", session=self._as_dict())

    def on_event(self, data: bytes) -> None:
        """Handle one message of the client. What is wrong with it becomes an `error` event."""
        self._event_id = None
        if _has_many_values(data):
            self._fail(EventError(f"the message has more than {MAX_VALUES} values", None, "invalid_event"))
            return
        try:
            event = msgspec.json.decode(with_whole_characters(data))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._fail(EventError(f"the message is not valid JSON: {error}", None, "invalid_event"))
            return
        if not isinstance(event, dict):
            self._fail(EventError("the message is not a JSON object", None, "invalid_event"))
            return
        try:
            if self._listener.puts_off(event, len(data)):
                return
        except InvalidArgument as error:
            self._fail(error)
            return
        self.handle(event)

    def handle(self, event: Json) -> None:
        event_id = event.get("event_id")
        self._event_id = event_id if isinstance(event_id, str) and len(event_id) <= 512 else None
        kind = event.get("type")
        handler = self._handlers.get(kind) if isinstance(kind, str) else None
        try:
            if handler is None:
                types = ", ".join(self._handlers)
                raise EventError.at(
                    "type",
                    f"{shortened(repr(kind))} is not a client event; there are {types}",
                    "invalid_event",
                )
            handler(event)
        except InvalidArgument as error:
            self._fail(error)

    def on_answer(self, answer: Answer) -> None:
        """Handle what the models made for a response. What comes after its end is dropped."""
        early = self._early
        if early is not None and answer.run is early.prompt.run:
            early.answers.append(answer)
            if answer.error is not None:
                self.drop_early_answer()  # the turn's own attempt may succeed
            return
        response = self.responses.get(answer.run.id)
        if response is None or response.run.cancelled or answer.result is not None:
            return
        if response.config.speaks:
            self._spoke = self._spoke or bool(answer.audio)
            response.add_speech(answer.text, answer.audio)
        else:
            response.add_text(answer.text)
        for call in answer.calls:
            response.add_call(call)
        response.tokens = answer.tokens
        if answer.last:
            self._finish(response, answer)

    def _finish(self, response: Response, answer: Answer) -> None:
        reason = CUT.get(answer.finish_reason or "")
        if answer.error is not None:
            self._end(response, "failed", error=public(answer.error))
        elif answer.finish_reason == REPETITION:
            self._end(
                response, "incomplete", error=Repetition("the answer was ended: it only repeated itself")
            )
        else:
            self._end(response, "completed" if reason is None else "incomplete", reason=reason)

    def close(self) -> None:
        """End all work, because the client has left."""
        self.drop_early_answer()
        for response in self.responses.values():
            response.run.cancel()
        self._listener.close()

    # -- what the listener asks for

    def fail(self, error: OvserveError) -> None:
        """Send an `error` that no event of the client caused."""
        self._event_id = None
        self._fail(error)

    def interrupt(self) -> None:
        """Cancel the answer, because the user speaks."""
        if self.active is not None:
            self._interrupt(self.active, "turn_detected")

    def answer_early(self, text: str) -> None:
        """Begin to answer an open turn with so much said, unless a response is in progress."""
        if not self.abilities.answers_early or self.responses or not isinstance(self.config, SessionConfig):
            return
        content = [{"type": "input_audio", "transcript": text}]
        item = Item({"type": "message", "role": "user", "content": content})
        try:
            config = response_config(self.config, {}, self.abilities)
        except EventError:
            return  # the turn will say so
        self.drop_early_answer()
        prompt = self._prompt(Run(new_id("early"), early=True), config, [*self.conversation.items, item])
        self._early = EarlyAnswer(prompt)
        self.work.append(prompt)

    def drop_early_answer(self) -> None:
        if self._early is not None:
            self._early.prompt.run.cancel()
            self._early = None
            self._count("early_dropped")

    def respond(self) -> None:
        """Begin a response to a turn, unless the client was faster or nothing can be answered."""
        self._event_id = None
        if self.active is None:
            try:
                self._respond({})
            except EventError as error:
                self._fail(error)

    def transcribed(self, item_id: str, error: OvserveError | None) -> None:
        """Let responses go on that have waited for a transcript; without one they fail."""
        for response in list(self.responses.values()):
            if item_id in response.waits_for:
                response.waits_for.discard(item_id)
                if error is not None:
                    self._end(response, "failed", error=error)
                elif not response.waits_for:
                    self._send_prompt(response)

    # -- what goes out

    def emit(self, type_: str, **fields: Any) -> None:
        self._numbers += 1
        self.events.append({"type": type_, "event_id": f"event_{self.id[5:]}_{self._numbers}", **fields})

    def _fail(self, error: OvserveError) -> None:
        code = error.event_code if isinstance(error, EventError) else error.code or error.kind
        kind = "invalid_request_error" if isinstance(error, InvalidArgument) else "server_error"
        details = {"type": kind, "code": code, "message": str(error), "param": error.param}
        self.emit("error", error={**details, "event_id": self._event_id})

    def _as_dict(self) -> Json:
        fields: Json = {"id": self.id, "object": f"realtime.{'transcription_' * self.only_writes}session"}
        config: Json = msgspec.to_builtins(self.config)
        return fields | config | {"expires_at": self._expires}

    # -- configuration

    @property
    def only_writes(self) -> bool:
        """Return whether the session only writes down what is said."""
        return not isinstance(self.config, SessionConfig)

    def _update(self, event: Json) -> None:
        changes = event.get("session")
        if not isinstance(changes, dict):
            raise EventError.at("session", "expected an object")
        config = updated(self.config, changes, self.abilities)
        old = self.config
        if isinstance(config, SessionConfig) and isinstance(old, SessionConfig):
            if self._spoke and config.audio.output.voice != old.audio.output.voice:
                raise EventError.at(
                    "session.audio.output.voice",
                    "the voice cannot change after audio was sent",
                    "cannot_update_voice",
                )
        elif self.responses:
            raise EventError.at("session.type", "it cannot change during a response")
        self._set_config(config)
        self.emit("session.updated", session=self._as_dict())

    def _set_config(self, config: AnyConfig) -> None:
        before, self.config = self.config.audio.input, config
        self._listener.configure(before)

    # -- items

    def add_item(self, item: Item, previous: str | None, *, bounded: bool = True) -> None:
        before = self.conversation.add(item, previous, bounded=bounded)
        self.emit("conversation.item.added", previous_item_id=before, item=item.value)
        self.emit("conversation.item.done", previous_item_id=before, item=item.value)

    def _create_item(self, event: Json) -> None:
        item = client_item(event.get("item"))
        previous = event.get("previous_item_id")
        if previous is not None and not isinstance(previous, str):
            raise EventError.expected("previous_item_id", "a string", previous)
        if item.pending and not self.abilities.hears:
            raise EventError.at("item.content", "this graph has no node that hears", "unsupported_audio")
        audio = self._listener.converted(item) if item.pending else b""
        self.add_item(item, previous)
        if item.pending:
            self._listener.hear_item(item, audio)

    def _retrieve(self, event: Json) -> None:
        self.emit(
            "conversation.item.retrieved", item=self.conversation.get(event.get("item_id")).with_audio()
        )

    def _delete(self, event: Json) -> None:
        item = self.conversation.delete(event.get("item_id"))
        self.transcribed(item.id, None)
        self.emit("conversation.item.deleted", item_id=item.id)

    def _truncate(self, event: Json) -> None:
        item, end = self.conversation.truncate(event)
        self.emit("conversation.item.truncated", item_id=item.id, content_index=0, audio_end_ms=end)

    # -- responses

    def _create_response(self, event: Json) -> None:
        options = event.get("response")
        if options is not None and not isinstance(options, dict):
            raise EventError.at("response", "expected an object")
        self._respond(options or {})

    def _respond(self, options: Json) -> None:
        if not isinstance(self.config, SessionConfig):
            raise EventError(
                "a transcription session has no responses", "type", "unsupported_in_transcription_session"
            )
        config = response_config(self.config, options, self.abilities)
        apart = config.conversation == "none"
        if not apart and self.active is not None:
            raise EventError(
                "the conversation already has an active response: wait for its response.done, or cancel it",
                None,
                "conversation_already_has_active_response",
            )
        if len(self.responses) > MAX_RESPONSES:
            raise EventError(
                f"at most {MAX_RESPONSES} responses may be in progress", None, "too_many_responses"
            )
        items = self._items_of(config)
        response = Response(self.emit, None if apart else self.conversation, config, self._listener.heard_ms)
        self._listener.heard_ms, self._listener.idle_at = 0, None
        self.responses[response.id] = response
        if not apart:
            self.active = response
        response.prompt_items = items
        failed = next((item for item in items if item.failed), None)
        response.waits_for = {item.id for item in items if item.pending}
        if failed is not None and failed is items[-1]:
            self._end(
                response, "failed", error=EventError(f"the last item has no transcript: {failed.failed}")
            )
        elif not response.waits_for:
            self._send_prompt(response)

    def _items_of(self, config: ResponseConfig) -> list[Item]:
        """Return what the model is to read. Raises EventError naming the field."""
        if config.input is None:
            return self.conversation.items
        items = []
        for at, entry in enumerate(config.input):
            where = f"response.input[{at}]"
            if entry.get("type") == "item_reference":
                items.append(self.conversation.get(entry.get("id"), f"{where}.id"))
                continue
            item = client_item(entry, where)
            if item.pending:
                raise EventError.at(f"{where}.content", "audio needs an item of the conversation")
            items.append(item)
        return items

    def _prompt(self, run: Run, config: ResponseConfig, items: list[Item]) -> Prompt:
        output = config.audio.output
        assert isinstance(output.voice, str), "it has been checked"
        assert isinstance(self.config, SessionConfig), "others have no responses"
        manner = Manner(output.voice, output.speed, output.format) if config.speaks else None
        messages = messages_of(config.instructions, items)
        truncate = self.config.truncation != "disabled"
        return Prompt(run, messages, config.policy(), config.max_tokens, truncate, manner)

    def _send_prompt(self, response: Response) -> None:
        prompt = self._prompt(response.run, response.config, response.prompt_items)
        response.prompt_items = []
        if not prompt.messages:
            error = EventError(
                "the response has nothing to answer: no instructions and no items", None, "empty_input"
            )
            self._end(response, "failed", error=error)
            return
        early = self._early
        if early is None or early.prompt != msgspec.structs.replace(prompt, run=early.prompt.run):
            self.drop_early_answer()  # the models do what was asked for
            self.work.append(prompt)
            return
        self._early = None
        self._count("early_used")
        response.run = early.prompt.run
        response.run.id = response.id
        response.run.sure.set()
        for answer in early.answers:
            self.on_answer(answer)

    def _cancel_response(self, event: Json) -> None:
        id_ = event.get("response_id")
        response = self.active if id_ is None else self.responses.get(id_) if isinstance(id_, str) else None
        if response is None:
            if id_ is not None:
                raise EventError.at("response_id", "no such response is in progress", NOT_ACTIVE)
            raise EventError("cancellation failed: no active response found", None, NOT_ACTIVE)
        self._interrupt(response, "client_cancelled")

    def _interrupt(self, response: Response, reason: str) -> None:
        response.run.cancel()
        self._end(response, "cancelled", reason=reason)

    def _end(
        self,
        response: Response,
        status: str,
        *,
        reason: str | None = None,
        error: OvserveError | None = None,
    ) -> None:
        response.run.cancel()  # a node that still works on it stops
        del self.responses[response.id]
        if self.active is response:
            self.active = None
        response.finish(status, reason=reason, error=error)
        self._count(f"responses_{status}")
        if status == "completed":
            self._listener.wait_for_user(response.audio_ms)

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def _no_webrtc(self, event: Json) -> None:
        what = "this event is for WebRTC and SIP; stop the playback, send conversation.item.truncate"
        raise EventError.at("type", what, "unsupported_event")


def _has_many_values(data: bytes) -> bool:
    """Commas of texts, as of a table, separate no values. Of an object each has two strings."""
    if data.count(b",") <= MAX_VALUES:
        return False
    commas = end = 0
    for count, string in enumerate(STRING.finditer(data)):
        commas += data.count(b",", end, string.start())
        end = string.end()
        if commas > MAX_VALUES or count > 2 * MAX_VALUES + 1:
            return True
    return commas + data.count(b",", end) > MAX_VALUES
