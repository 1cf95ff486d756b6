"""The state of a realtime session, and the one place that changes it.

Events of the client, activity, transcripts and answers come in, one after another; server events (`events`)
and packets for the models (`work`) come out. There is no I/O and no clock: time is that of the audio.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ovserve.api.openai.realtime.config import (
    Abilities,
    AnyConfig,
    AudioInput,
    EventError,
    Format,
    ResponseConfig,
    SessionConfig,
    fault,
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
from ovserve.api.openai.realtime.hearing import MOST_SECONDS, SHORTEST_MS, Ear, InputBuffer
from ovserve.api.openai.realtime.packets import (
    RATE,
    Activity,
    Answer,
    Manner,
    Prompt,
    Run,
    Sound,
    Transcript,
    Utterance,
)
from ovserve.api.openai.realtime.response import Response
from ovserve.api.openai.realtime.turns import Turn, TurnDetector
from ovserve.errors import InvalidArgument, OvserveError, public, shortened

COMMIT_EMPTY = "input_audio_buffer_commit_empty"
TRANSCRIPTION = "conversation.item.input_audio_transcription."
MAX_RESPONSES = 8  # in progress, beside the conversation; they are generated one after another
SESSION_SECONDS = 3600
ROOM_SECONDS = 600.0  # of audio that has come faster than it is looked at

Work = Prompt | Sound | Utterance


class _Speech:
    """A turn of the user: from its first sound until its transcript is known."""

    def __init__(self, item_id: str, start: int) -> None:
        self.item_id = item_id
        self.start = start
        self.run: Run | None = None  # what writes it down, begun in a pause if the turn may end there
        self.text = ""
        self.heard = False  # the transcript is complete
        self.committed = False
        self.sent = 0  # characters that were sent as deltas
        self.seconds = 0.0
        self.responds = False  # a response follows if there is text
        self.error: OvserveError | None = None


class RealtimeSession:
    def __init__(
        self, abilities: Abilities, make_ear: Callable[[Format], Ear], now: float | None = None
    ) -> None:
        self.abilities = abilities
        self.id = new_id("sess")
        self.events: list[Json] = []
        self.work: list[Work] = []
        self.config: AnyConfig = initial_config(abilities)
        self.conversation = Conversation()
        self.active: Response | None = None  # of the conversation
        self.responses: dict[str, Response] = {}  # in progress, those beside the conversation too
        self.counts: dict[str, int] = {}  # of responses, by status
        self._buffer = InputBuffer(make_ear)
        self._expires = int((time.time() if now is None else now) + SESSION_SECONDS)
        self._numbers = 0
        self._speech: _Speech | None = None  # the open turn
        self._speeches: dict[str, _Speech] = {}  # by the run that writes them down
        self._looked = 0  # samples whose activity is known
        self._later: deque[tuple[int, Json]] = deque()  # commits, until the audio before them was looked at
        self._heard_ms = 0  # since the last response
        self._spoke = False  # audio was sent: the voice stays
        self._idle_at: int | None = None  # the sample at which the user has been silent for too long
        self._event_id: str | None = None  # of the client event that is being handled
        self._detector = self._new_detector()
        self._handlers: Mapping[str, Callable[[Json], None]] = {
            "session.update": self._update,
            "input_audio_buffer.append": self._append,
            "input_audio_buffer.commit": self._commit,
            "input_audio_buffer.clear": self._clear,
            "conversation.item.create": self._create_item,
            "conversation.item.retrieve": self._retrieve,
            "conversation.item.delete": self._delete,
            "conversation.item.truncate": self._truncate,
            "response.create": self._create_response,
            "response.cancel": self._cancel_response,
            "output_audio_buffer.clear": self._no_webrtc,
        }

    # -- what comes in

    def begin(self, given: Mapping[str, Any]) -> None:
        """Send `session.created`. `given` is a configuration that was bound to the client's key."""
        if given:
            self._set_config(updated(self.config, given, self.abilities))
        self.emit("session.created", session=self._shown())

    def on_event(self, data: bytes) -> None:
        """Handle one message of the client. What is wrong with it becomes an `error` event."""
        self._event_id = None
        try:
            event = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._fail(fault(f"the message is not valid JSON: {error}", None, "invalid_event"))
            return
        if not isinstance(event, dict):
            self._fail(fault("the message is not a JSON object", None, "invalid_event"))
            return
        self._handle(event)

    def _handle(self, event: Json) -> None:
        given = event.get("event_id")
        self._event_id = given if isinstance(given, str) and len(given) <= 512 else None
        kind = event.get("type")
        handler = self._handlers.get(kind) if isinstance(kind, str) else None
        try:
            if handler is None:
                known = ", ".join(self._handlers)
                raise fault(
                    f"type: {shortened(repr(kind))} is not a client event; there are {known}",
                    "type",
                    "invalid_event",
                )
            handler(event)
        except InvalidArgument as error:
            self._fail(error)

    def on_answer(self, answer: Answer) -> None:
        """Handle what the models made for a response. What comes after its end is dropped."""
        response = self.responses.get(answer.run.id)
        if response is None or response.run.cancelled:
            return
        if response.config.speaks:
            self._spoke = self._spoke or bool(answer.audio)
            response.add_speech(answer.text, answer.audio)
        else:
            response.add_text(answer.text)
        for call in answer.calls:
            response.add_call(call)
        response.tokens = answer.tokens
        if not answer.last:
            return
        if answer.error is not None:
            self._end(response, "failed", error=public(answer.error))
        elif answer.finish_reason == "length":
            self._end(response, "incomplete", reason="max_output_tokens")
        elif answer.finish_reason == "content_filter":
            self._end(response, "incomplete", reason="content_filter")
        else:
            self._end(response, "completed")

    def on_activity(self, activity: Activity) -> None:
        """Handle the probabilities of speech of audio that was sent as `Sound`."""
        if activity.error is not None:
            # The turns of audio that was not looked at are lost; the session goes on with the next.
            self._event_id = None
            self._fail(public(activity.error))
        if self._detector is not None:
            for turn in self._detector.feed(activity.probabilities, activity.end):
                self._on_turn(turn)
        self._looked = max(self._looked, activity.end)
        while self._later and self._later[0][0] <= self._looked:
            self._handle(self._later.popleft()[1])
        if self._detector is not None and self._speech is None:
            self._check_idle()
            self._buffer.trim()

    def on_transcript(self, transcript: Transcript) -> None:
        """Handle text of an utterance."""
        speech = self._speeches.get(transcript.run.id)
        if speech is None or transcript.run.cancelled:
            return
        speech.text += transcript.text
        if speech.committed:
            self._send_delta(speech)
        if not transcript.last:
            return
        speech.heard, speech.error = True, transcript.error
        if speech.committed:
            self._transcribed(speech)
        elif self._detector is not None:
            self._detector.text = speech.text

    def close(self) -> None:
        """End all work, because the client has left."""
        for response in self.responses.values():
            response.run.cancel()
        for speech in self._speeches.values():
            if speech.run is not None:
                speech.run.cancel()

    # -- what goes out

    def emit(self, type_: str, **fields: Any) -> None:
        self._numbers += 1
        self.events.append({"type": type_, "event_id": f"event_{self.id[5:]}_{self._numbers}", **fields})

    def _fail(self, error: OvserveError) -> None:
        code = error.event_code if isinstance(error, EventError) else error.code or error.kind
        kind = "invalid_request_error" if isinstance(error, InvalidArgument) else "server_error"
        shown = {"type": kind, "code": code, "message": str(error), "param": error.param}
        self.emit("error", error={**shown, "event_id": self._event_id})

    def _shown(self) -> Json:
        known: Json = {"id": self.id, "object": f"realtime.{'transcription_' * self._writes}session"}
        config: Json = msgspec.to_builtins(self.config)
        return known | config | {"expires_at": self._expires}

    # -- configuration

    @property
    def _writes(self) -> bool:
        """Return whether the session only writes down what is said."""
        return not isinstance(self.config, SessionConfig)

    @property
    def _input(self) -> AudioInput:
        return self.config.audio.input

    def _update(self, event: Json) -> None:
        given = event.get("session")
        if not isinstance(given, dict):
            raise fault("session: expected an object", "session")
        config = updated(self.config, given, self.abilities)
        old = self.config
        if isinstance(config, SessionConfig) and isinstance(old, SessionConfig):
            if self._spoke and config.audio.output.voice != old.audio.output.voice:
                raise fault(
                    "session.audio.output.voice: the voice cannot change after audio was sent",
                    "session.audio.output.voice",
                    "cannot_update_voice",
                )
        elif self.responses:
            raise fault("session.type: it cannot change during a response", "session.type")
        self._set_config(config)
        self.emit("session.updated", session=self._shown())

    def _set_config(self, config: AnyConfig) -> None:
        before, self.config = self._input, config
        if before.format != self._input.format:
            self._drop_turn()
            self._buffer.set_format(self._input.format)
            self._looked = self._buffer.end
        if before.turn_detection != self._input.turn_detection:
            if self._input.turn_detection is None:
                self._drop_turn()
                self._detector = None
            elif self._detector is not None:  # an open turn goes on, with the new values
                self._detector.config = self._input.turn_detection
            else:
                self._detector = self._new_detector()
                self._looked = self._buffer.end

    def _new_detector(self) -> TurnDetector | None:
        config = self._input.turn_detection
        return TurnDetector(config) if config is not None else None

    # -- input audio

    def _append(self, event: Json) -> None:
        if not self.abilities.hears:
            raise fault("this graph has no node that hears: it takes text only", "audio", "unsupported_audio")
        room = MOST_SECONDS if self._detector is None else ROOM_SECONDS
        audio = self._buffer.append(event.get("audio"), room)
        if audio and self._detector is not None:
            self.work.append(Sound(audio, self._buffer.end))

    def _commit(self, event: Json) -> None:
        if self._detector is not None and self._looked + 511 < self._buffer.end:
            self._later.append((self._buffer.end - 511, event))
            self.work.append(Sound(b"", self._buffer.end, last=True))
            return
        speech = self._speech
        if self._detector is not None:
            if speech is None:
                raise fault(
                    "input audio buffer: buffer too small: no speech is in it",
                    None,
                    COMMIT_EMPTY,
                )
            self._on_turn(self._detector.end(self._buffer.end), by_client=True)
            return
        if self._buffer.milliseconds < SHORTEST_MS:
            raise fault(
                f"input audio buffer: buffer too small: expected at least {SHORTEST_MS}ms of audio, "
                f"but it has {self._buffer.milliseconds}ms",
                None,
                COMMIT_EMPTY,
            )
        self._finish_turn(_Speech(new_id("item"), self._buffer.begin), self._buffer.end, responds=False)

    def _clear(self, event: Json) -> None:
        self._drop_turn()
        self._later.clear()
        self._buffer.clear()
        self.emit("input_audio_buffer.cleared")

    def _drop_turn(self) -> None:
        speech, self._speech = self._speech, None
        if speech is not None:
            self._stop_writing(speech)
            if self._detector is not None:
                self._detector.end(self._buffer.end)

    def _on_turn(self, turn: Turn, *, by_client: bool = False) -> None:
        config = self._input.turn_detection
        assert config is not None, "only a detector notices turns"
        speech = self._speech
        if turn.kind == "begun":
            speech = self._speech = _Speech(new_id("item"), turn.at)
            self.emit(
                "input_audio_buffer.speech_started", audio_start_ms=_ms(turn.at), item_id=speech.item_id
            )
            if config.interrupt_response and self.active is not None:
                self._interrupt(self.active, "turn_detected")
        elif speech is None:
            return
        elif turn.kind == "paused":
            self._write_down(speech, turn.at)
        elif turn.kind == "resumed":
            self._stop_writing(speech)
        else:
            self.emit("input_audio_buffer.speech_stopped", audio_end_ms=_ms(turn.at), item_id=speech.item_id)
            self._speech = None
            self._finish_turn(speech, turn.at, responds=config.create_response and not by_client)

    def _finish_turn(self, speech: _Speech, end: int, *, responds: bool) -> None:
        """Make an item of a turn."""
        raw = self._buffer.raw(speech.start, end)
        audio_ms = _ms(end - max(speech.start, self._buffer.begin))
        content = [{"type": "input_audio", "transcript": None}]
        value: Json = {"id": speech.item_id, "object": "realtime.item", "type": "message"}
        item = Item(value | {"status": "completed", "role": "user", "content": content}, pending=True)
        self.emit("input_audio_buffer.committed", item_id=item.id, previous_item_id=self.conversation.last_id)
        self._add_item(item, None, bounded=False)
        self.conversation.keep_audio(item, raw)
        self._heard_ms += audio_ms
        speech.committed, speech.seconds = True, audio_ms / 1000
        speech.responds = responds and not self._writes
        if speech.run is None:
            self._write_down(speech, end)
        self._buffer.drop(end)
        if speech.heard:
            self._send_delta(speech)
            self._transcribed(speech)

    def _write_down(self, speech: _Speech, end: int) -> None:
        config = self._input.transcription
        speech.run, speech.text, speech.heard, speech.sent = Run(new_id("hear")), "", False, 0
        self._speeches[speech.run.id] = speech
        language, prompt = (config.language or "", config.prompt or "") if config else ("", "")
        language = self.abilities.language(language) if language else ""
        self.work.append(Utterance(speech.run, self._buffer.audio(speech.start, end), language, prompt))

    def _stop_writing(self, speech: _Speech) -> None:
        if speech.run is not None:
            speech.run.cancel()
            self._speeches.pop(speech.run.id, None)
            speech.run, speech.text, speech.heard = None, "", False

    def _send_delta(self, speech: _Speech) -> None:
        text = speech.text[speech.sent :]
        if not text or self._input.transcription is None:
            return
        speech.sent = len(speech.text)
        self.emit(
            f"{TRANSCRIPTION}delta",
            item_id=speech.item_id,
            content_index=0,
            delta=text,
        )

    def _transcribed(self, speech: _Speech) -> None:
        assert speech.run is not None
        del self._speeches[speech.run.id]
        known: Json = {"item_id": speech.item_id, "content_index": 0}
        text = speech.text.strip()
        error = public(speech.error) if speech.error is not None else None
        if self._input.transcription is not None and error is not None:
            shown = {
                "type": error.kind,
                "code": error.code or error.kind,
                "message": str(error),
                "param": None,
            }
            self.emit(f"{TRANSCRIPTION}failed", **known, error=shown)
        elif self._input.transcription is not None:
            usage = {"type": "duration", "seconds": round(speech.seconds, 3)}
            self.emit(f"{TRANSCRIPTION}completed", **known, transcript=text, usage=usage)
        elif error is not None and speech.responds:
            self._event_id = None
            self._fail(error)
        item = self._find(speech.item_id)
        if item is not None:
            item.pending, item.failed = False, str(error) if error is not None else ""
            part = item.speech
            assert part is not None, "it was made of audio"
            before = item.size
            part["transcript"] = text
            self.conversation.grew(item.size - before)
        for response in list(self.responses.values()):
            if speech.item_id in response.waits_for:
                response.waits_for.discard(speech.item_id)
                if error is not None:
                    self._end(response, "failed", error=error)
                elif not response.waits_for:
                    self._send_prompt(response)
        if speech.responds and item is not None and text and error is None and self.active is None:
            self._event_id = None
            self._respond({})

    def _check_idle(self) -> None:
        if self._idle_at is None or self._looked < self._idle_at or self.active is not None:
            return
        start, self._idle_at = self._idle_at, None
        speech = _Speech(new_id("item"), max(self._buffer.begin, self._looked - RATE))
        self.emit(
            "input_audio_buffer.timeout_triggered",
            audio_start_ms=_ms(min(start, self._looked)),
            audio_end_ms=_ms(self._looked),
            item_id=speech.item_id,
        )
        self._finish_turn(speech, self._looked, responds=False)
        self._event_id = None
        self._respond({})

    # -- items

    def _find(self, id_: str) -> Item | None:
        try:
            return self.conversation.get(id_)
        except EventError:
            return None

    def _add_item(self, item: Item, previous: str | None, *, bounded: bool = True) -> None:
        before = self.conversation.add(item, previous, bounded=bounded)
        self.emit("conversation.item.added", previous_item_id=before, item=item.value)
        self.emit("conversation.item.done", previous_item_id=before, item=item.value)

    def _create_item(self, event: Json) -> None:
        item = client_item(event.get("item"))
        previous = event.get("previous_item_id")
        if previous is not None and not isinstance(previous, str):
            raise fault(f"previous_item_id: expected a string, got {previous!r}", "previous_item_id")
        self._check_audio(item)
        self._add_item(item, previous)
        self._hear_item(item)

    def _check_audio(self, item: Item) -> None:
        if item.pending and not self.abilities.hears:
            raise fault(
                "item.content: this graph has no node that hears", "item.content", "unsupported_audio"
            )

    def _hear_item(self, item: Item) -> None:
        """Have audio that came in an item written down."""
        if not item.pending:
            return
        speech = _Speech(item.id, 0)
        speech.committed, speech.run = True, Run(new_id("hear"))
        self._speeches[speech.run.id] = speech
        audio = self._buffer.converted(bytes(item.audio))
        speech.seconds = len(audio) / 2 / RATE
        self._heard_ms += _ms(len(audio) // 2)
        self.work.append(Utterance(speech.run, audio))

    def _retrieve(self, event: Json) -> None:
        self.emit("conversation.item.retrieved", item=self.conversation.get(event.get("item_id")).shown())

    def _delete(self, event: Json) -> None:
        item = self.conversation.delete(event.get("item_id"))
        for response in list(self.responses.values()):
            if item.id in response.waits_for:
                response.waits_for.discard(item.id)
                if not response.waits_for:
                    self._send_prompt(response)
        self.emit("conversation.item.deleted", item_id=item.id)

    def _truncate(self, event: Json) -> None:
        item, end = self.conversation.truncate(event)
        self.emit("conversation.item.truncated", item_id=item.id, content_index=0, audio_end_ms=end)

    # -- responses

    def _create_response(self, event: Json) -> None:
        given = event.get("response")
        if given is not None and not isinstance(given, dict):
            raise fault("response: expected an object", "response")
        self._respond(given or {})

    def _respond(self, given: Json) -> None:
        if not isinstance(self.config, SessionConfig):
            raise fault(
                "a transcription session has no responses", "type", "unsupported_in_transcription_session"
            )
        config = response_config(self.config, given, self.abilities)
        beside = config.conversation == "none"
        if not beside and self.active is not None:
            raise fault(
                "the conversation already has an active response: wait for its response.done, or cancel it",
                None,
                "conversation_already_has_active_response",
            )
        if len(self.responses) > MAX_RESPONSES:
            raise fault(f"at most {MAX_RESPONSES} responses may be in progress", None, "too_many_responses")
        items = self._items_of(config)
        response = Response(self.emit, None if beside else self.conversation, config, self._heard_ms)
        self._heard_ms, self._idle_at = 0, None
        self.responses[response.id] = response
        if not beside:
            self.active = response
        response.prompt_items = items
        failed = next((item for item in items if item.failed), None)
        response.waits_for = {item.id for item in items if item.pending}
        if failed is not None and failed is items[-1]:
            self._end(response, "failed", error=fault(f"the last item has no transcript: {failed.failed}"))
        elif not response.waits_for:
            self._send_prompt(response)

    def _items_of(self, config: ResponseConfig) -> list[Item]:
        """Return what the model is to read. Raises EventError naming the field."""
        if config.input is None:
            return self.conversation.items
        items = []
        for at, given in enumerate(config.input):
            where = f"response.input[{at}]"
            if given.get("type") == "item_reference":
                items.append(self.conversation.get(given.get("id"), f"{where}.id"))
                continue
            item = client_item(given, where)
            if item.pending:
                raise fault(f"{where}.content: audio needs an item of the conversation", f"{where}.content")
            items.append(item)
        return items

    def _send_prompt(self, response: Response) -> None:
        config = response.config
        output = config.audio.output
        assert isinstance(output.voice, str), "it has been checked"
        assert isinstance(self.config, SessionConfig), "others have no responses"
        manner = Manner(output.voice, output.speed, output.format) if config.speaks else None
        messages = messages_of(config.instructions, response.prompt_items)
        response.prompt_items = []
        if not messages:
            error = fault(
                "the response has nothing to answer: no instructions and no items", None, "empty_input"
            )
            self._end(response, "failed", error=error)
            return
        truncate = self.config.truncation != "disabled"
        self.work.append(Prompt(response.run, messages, config.policy(), config.max_tokens, truncate, manner))

    def _cancel_response(self, event: Json) -> None:
        id_ = event.get("response_id")
        response = self.active if id_ is None else self.responses.get(id_) if isinstance(id_, str) else None
        if response is None:
            raise fault(
                "response_id: no such response is in progress"
                if id_ is not None
                else "cancellation failed: no active response found",
                "response_id" if id_ is not None else None,
                "response_cancel_not_active",
            )
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
        response.done(status, reason=reason, error=error)
        self.counts[status] = self.counts.get(status, 0) + 1
        idle = getattr(self._input.turn_detection, "idle_timeout_ms", None)
        if idle is not None and status == "completed":
            self._idle_at = self._buffer.end + (response.audio_ms + idle) * RATE // 1000

    def _no_webrtc(self, event: Json) -> None:
        raise fault(
            "output_audio_buffer.clear: for WebRTC and SIP only; stop the playback and send "
            "conversation.item.truncate",
            "type",
            "unsupported_event",
        )


def _ms(samples: int) -> int:
    return samples * 1000 // RATE
