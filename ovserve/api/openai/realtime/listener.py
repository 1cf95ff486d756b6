"""The ears of a session: turns of the user, from audio to an item of the conversation with its transcript."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from ovserve.api.openai.realtime.config import (
    Abilities,
    AnyConfig,
    AudioInput,
    EventError,
    Format,
    Pcm,
    ServerVad,
    TranscriptionConfig,
)
from ovserve.api.openai.realtime.conversation import Conversation, Item, Json, new_id
from ovserve.api.openai.realtime.packets import Activity, Prompt, Run, Sound, Transcript, Utterance
from ovserve.api.openai.realtime.response import (
    FRAME_SAMPLES,
    MOST_SECONDS,
    SHORTEST_MS,
    Ear,
    InputBuffer,
    Response,
    Turn,
    TurnDetector,
)
from ovserve.errors import OvserveError, public
from ovserve.llm.audio import SAMPLES_PER_SECOND

COMMIT_EMPTY = "input_audio_buffer_commit_empty"
TRANSCRIPTION = "conversation.item.input_audio_transcription."
ROOM_SECONDS = 600.0  # of audio that has come faster than it is looked at
CARRIED_CHARACTERS = 200  # of a turn, given to the model as the prompt of its next part
FIRST_CJK = "\u2e80"
MAX_LATER, MAX_LATER_BYTES = 1000, 32 << 20  # events that wait for a commit, and their messages
COMMIT, APPEND = "input_audio_buffer.commit", "input_audio_buffer.append"

Work = Prompt | Sound | Utterance


class Host(Protocol):
    """The session, as its listener needs it."""

    abilities: Abilities
    work: list[Work]
    config: AnyConfig
    conversation: Conversation
    active: Response | None

    @property
    def only_writes(self) -> bool: ...

    def emit(self, type_: str, **fields: Any) -> None: ...

    def handle(self, event: Json) -> None: ...

    def fail(self, error: OvserveError) -> None: ...

    def add_item(self, item: Item, previous: str | None, *, bounded: bool = True) -> None: ...

    def interrupt(self) -> None: ...

    def respond(self) -> None: ...

    def answer_early(self, text: str) -> None: ...

    def drop_early_answer(self) -> None: ...

    def transcribed(self, item_id: str, error: OvserveError | None) -> None: ...


class _Speech:
    """A turn of the user: from its first sound until its transcript is known."""

    def __init__(self, item_id: str, start: int, content_index: int = 0) -> None:
        self.item_id, self.content_index = item_id, content_index
        self.start = start
        self.begin = start  # of the part that is written down next
        self.end = start  # of the part that was last
        self.runs: list[Run] = []  # what writes it down, begun in a pause if the turn may end there
        self.text = ""
        self.committed = False
        self.sent = 0  # characters that were sent as deltas
        self.seconds = 0.0
        self.responds = False  # a response follows if there is text
        self.error: OvserveError | None = None
        self._writer: Run | None = None  # of the last text

    def add(self, run: Run, text: str) -> None:
        """Add text of a part; between parts stands a blank, in scripts that have some."""
        if text and run is not self._writer:
            blank = self._writer is not None and self.text and self.text[-1] < FIRST_CJK
            self.text += " " if blank else ""
            self._writer = run
        self.text += text


class Listener:
    def __init__(self, host: Host, make_ear: Callable[[Format], Ear]) -> None:
        self._host = host
        self.heard_ms = 0  # of the user, since the last response
        self.idle_at: int | None = None  # the sample at which the user has been silent for too long
        self._buffer = InputBuffer(make_ear)
        self._speech: _Speech | None = None  # the open turn
        self._speeches: dict[str, _Speech] = {}  # by the run that writes them down
        self._looked = 0  # samples whose activity is known
        # Commits until the audio before them was looked at, and what came after them: the sample that has to
        # be known, the end of the buffer when the event came, and the event.
        self._later: deque[tuple[int, int, Json]] = deque()
        self._later_bytes = 0
        self._came_at: int | None = None  # the end of the buffer when the event at hand came, if that waited
        self._detector = self._new_detector()

    @property
    def _input(self) -> AudioInput:
        return self._host.config.audio.input

    def configure(self, before: AudioInput) -> None:
        """Follow a change of the configuration."""
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

    def wait_for_user(self, audio_ms: int) -> None:
        """Begin to wait for the user, after an answer of so much audio."""
        detection = self._input.turn_detection
        if isinstance(detection, ServerVad) and detection.idle_timeout_ms is not None:
            self.idle_at = (
                self._buffer.end + (audio_ms + detection.idle_timeout_ms) * SAMPLES_PER_SECOND // 1000
            )

    def close(self) -> None:
        for speech in self._speeches.values():
            for run in speech.runs:
                run.cancel()

    def on_activity(self, activity: Activity) -> None:
        """Handle the probabilities of speech of audio that was sent as `Sound`."""
        if activity.error is not None:
            # The turns of audio that was not looked at are lost; the session goes on with the next.
            self._host.fail(public(activity.error))
        if self._detector is not None:
            for turn in self._detector.feed(activity.probabilities, activity.end):
                self._on_turn(turn)
        self._looked = max(self._looked, activity.end)
        while self._later and self._later[0][0] <= self._looked:
            _, self._came_at, event = self._later.popleft()
            self._host.handle(event)
        self._came_at = None
        if not self._later:
            self._later_bytes = 0
        if self._detector is not None and self._speech is None:
            self._check_idle()
            self._buffer.trim(self._looked)

    def on_transcript(self, transcript: Transcript) -> None:
        speech = self._speeches.get(transcript.run.id)
        if speech is None or transcript.run.cancelled:
            return
        speech.add(transcript.run, transcript.text)
        if speech.committed or self._host.only_writes:
            self._send_delta(speech)
        if not transcript.last:
            return
        del self._speeches[transcript.run.id]
        speech.runs.remove(transcript.run)
        speech.error = speech.error or transcript.error
        if speech.runs:
            return
        if speech.committed:
            self._transcribed(speech)
        elif self._detector is not None:
            self._detector.text = speech.text
            text = speech.text.strip()
            if self._detector.config.create_response and text and speech.error is None:
                self._host.answer_early(text)

    def append(self, event: Json) -> None:
        if not self._host.abilities.hears:
            raise EventError(
                "this graph has no node that hears: it takes text only", "audio", "unsupported_audio"
            )
        room = MOST_SECONDS if self._detector is None else ROOM_SECONDS
        audio = self._buffer.append(event.get("audio"), room)
        if audio and self._detector is not None:
            self._host.work.append(Sound(audio, self._buffer.end))

    def puts_off(self, event: Json, size: int) -> bool:
        """Return whether an event of `size` bytes has to wait for a commit: a response is to have its turn.

        Raises EventError when too many wait.
        """
        if not self._later or event.get("type") in (COMMIT, APPEND):
            return False
        self._wait(self._later[-1][0], self._buffer.end, event, size)
        return True

    def _wait(self, until: int, end: int, event: Json, size: int) -> None:
        if len(self._later) >= MAX_LATER or self._later_bytes + size > MAX_LATER_BYTES:
            raise EventError(
                f"{len(self._later)} events wait for the audio before them", None, "too_many_events"
            )
        self._later.append((until, end, event))
        self._later_bytes += size

    def commit(self, event: Json) -> None:
        end = self._buffer.end if self._came_at is None else self._came_at
        behind = self._later or self._looked + FRAME_SAMPLES <= end
        if self._came_at is None and self._detector is not None and behind:
            self._wait(end - FRAME_SAMPLES + 1, end, event, 0)
            self._host.work.append(Sound(b"", end, last=True))
            return
        speech = self._speech
        if self._detector is not None:
            if speech is None:
                raise EventError("input audio buffer too small: no speech is in it", None, COMMIT_EMPTY)
            self._on_turn(self._detector.end(end), by_client=True)
            return
        if self._buffer.milliseconds < SHORTEST_MS:
            what = f"expected at least {SHORTEST_MS}ms of audio, but it has {self._buffer.milliseconds}ms"
            raise EventError(f"input audio buffer too small: {what}", None, COMMIT_EMPTY)
        self._finish_turn(_Speech(new_id("item"), self._buffer.begin), self._buffer.end, responds=False)

    def clear(self, event: Json) -> None:
        self._drop_turn()
        self._buffer.clear()
        self._host.emit("input_audio_buffer.cleared")

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
            self._host.emit(
                "input_audio_buffer.speech_started", audio_start_ms=_ms(turn.at), item_id=speech.item_id
            )
            if config.interrupt_response:
                self._host.interrupt()
        elif speech is None:
            return
        elif turn.kind == "paused":
            self._write_down(speech, turn.at)
        elif turn.kind == "resumed" and self._host.only_writes:
            speech.begin = speech.end  # what was said before the pause is a delta already, or will be
        elif turn.kind == "resumed":
            self._stop_writing(speech)
        else:
            self._host.emit(
                "input_audio_buffer.speech_stopped", audio_end_ms=_ms(turn.at), item_id=speech.item_id
            )
            self._speech = None
            self._finish_turn(speech, turn.at, responds=config.create_response and not by_client)

    def _finish_turn(self, speech: _Speech, end: int, *, responds: bool) -> None:
        raw = self._buffer.raw(speech.start, end)
        audio_ms = _ms(end - max(speech.start, self._buffer.begin))
        content = [{"type": "input_audio", "transcript": None}]
        value: Json = {"id": speech.item_id, "object": "realtime.item", "type": "message"}
        item = Item(value | {"status": "completed", "role": "user", "content": content}, pending=True)
        self._host.emit(
            "input_audio_buffer.committed", item_id=item.id, previous_item_id=self._host.conversation.last_id
        )
        self._host.add_item(item, None, bounded=False)
        self._host.conversation.keep_audio(item, raw)
        self.heard_ms += audio_ms
        speech.committed, speech.seconds = True, audio_ms / 1000
        speech.responds = responds and not self._host.only_writes
        if speech.begin == speech.end:  # not paused, or resumed since
            self._write_down(speech, end)
        self._buffer.drop(end)
        if not speech.runs:
            self._send_delta(speech)
            self._transcribed(speech)

    def _write_down(self, speech: _Speech, end: int) -> None:
        speech.end = end
        self._hear(speech, self._buffer.audio(speech.begin, end))

    def _hear(self, speech: _Speech, audio: bytes) -> None:
        config = self._input.transcription or TranscriptionConfig()
        run = Run(new_id("hear"))
        speech.runs.append(run)
        self._speeches[run.id] = speech
        language = self._host.abilities.language(config.language) if config.language else ""
        prompt = config.prompt or speech.text[-CARRIED_CHARACTERS:]
        self._host.work.append(Utterance(run, audio, language, prompt, ", ".join(config.keywords or ())))

    def _stop_writing(self, speech: _Speech) -> None:
        for run in speech.runs:
            run.cancel()
            self._speeches.pop(run.id, None)
        speech.runs, speech.text, speech.end, speech.sent = [], "", speech.begin, 0
        speech.error = None
        self._host.drop_early_answer()

    def _send_delta(self, speech: _Speech) -> None:
        text = speech.text[speech.sent :]
        if not text or self._input.transcription is None:
            return
        speech.sent = len(speech.text)
        self._host.emit(
            f"{TRANSCRIPTION}delta",
            item_id=speech.item_id,
            content_index=speech.content_index,
            delta=text,
        )

    def _transcribed(self, speech: _Speech) -> None:
        common: Json = {"item_id": speech.item_id, "content_index": speech.content_index}
        text = speech.text.strip()
        error = public(speech.error) if speech.error is not None else None
        if self._input.transcription is not None and error is not None:
            error_fields = {
                "type": error.kind,
                "code": error.code or error.kind,
                "message": str(error),
                "param": None,
            }
            self._host.emit(f"{TRANSCRIPTION}failed", **common, error=error_fields)
        elif self._input.transcription is not None:
            usage = {"type": "duration", "seconds": round(speech.seconds, 3)}
            self._host.emit(f"{TRANSCRIPTION}completed", **common, transcript=text, usage=usage)
        elif error is not None and speech.responds:
            self._host.fail(error)
        item = self._host.conversation.find(speech.item_id)
        if item is not None:
            item.pending, item.failed = False, str(error) if error is not None else ""
            part = item.speech
            assert part is not None, "it was made of audio"
            before = item.size
            part["transcript"] = text
            self._host.conversation.grew(item.size - before)
        self._host.transcribed(speech.item_id, error)
        if speech.responds and item is not None and text and error is None:
            self._host.respond()
        self._host.drop_early_answer()  # unless it was that

    def _check_idle(self) -> None:
        if self.idle_at is None or self._looked < self.idle_at or self._host.active is not None:
            return
        start, self.idle_at = self.idle_at, None
        speech = _Speech(new_id("item"), max(self._buffer.begin, self._looked - SAMPLES_PER_SECOND))
        self._host.emit(
            "input_audio_buffer.timeout_triggered",
            audio_start_ms=_ms(min(start, self._looked)),
            audio_end_ms=_ms(self._looked),
            item_id=speech.item_id,
        )
        self._finish_turn(speech, self._looked, responds=False)
        self._host.respond()

    def converted(self, item: Item) -> bytes:
        """Return the audio that came in an item, at 16 kHz. Raises EventError."""
        if isinstance(self._input.format, Pcm) and len(item.audio) % 2:
            why = f"item.content: {len(item.audio)} bytes of audio are no whole samples of 16 bits"
            raise EventError(why, "item.content")
        return self._buffer.converted(bytes(item.audio))

    def hear_item(self, item: Item, audio: bytes) -> None:
        """Have audio that came in an item written down; `audio`: at 16 kHz."""
        speech = _Speech(item.id, 0, item.value["content"].index(item.speech))
        speech.committed = True
        speech.seconds = len(audio) / 2 / SAMPLES_PER_SECOND
        self.heard_ms += _ms(len(audio) // 2)
        self._hear(speech, audio)

    def _new_detector(self) -> TurnDetector | None:
        config = self._input.turn_detection
        return TurnDetector(config) if config is not None else None


def _ms(samples: int) -> int:
    return samples * 1000 // SAMPLES_PER_SECOND
