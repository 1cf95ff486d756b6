"""One response: its items and events in the order that clients rely on.

Each `added` has its `done`, also when the response is cancelled, and `response.done` is the last.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from ovserve.api.openai.realtime.config import (
    EventError,
    Format,
    Pcm,
    ResponseConfig,
    SemanticVad,
    ServerVad,
    bytes_a_second,
)
from ovserve.api.openai.realtime.conversation import Conversation, Heard, Item, Json, new_id
from ovserve.api.openai.realtime.packets import Run, Tokens
from ovserve.errors import OvserveError
from ovserve.llm.audio import SAMPLES_PER_SECOND, base64_bytes
from ovserve.llm.output import ToolCall

# The input audio of a realtime session: a buffer, with bytes as they came and the same at 16 kHz for the
# models. And the turns of a speaker: where speech begins and ends, by the probability of speech in each 32
# ms.
#
# The clock is that of the audio: samples at 16 kHz since the session began. Between turns only what may be
# the beginning of the next one is kept.


FRAME_SAMPLES = 512  # samples with one probability
SPEECH_FRAMES = 3  # 96 ms of speech begin a turn: a click is shorter
PAUSE_FRAMES = 6  # after 192 ms of silence what was said so far is written down, in case the turn ends
END_THRESHOLD_DROP = 0.15  # speech goes on until the probability is this far below the threshold
PADDING_MS = 300  # of semantic_vad
ENDED_MS, OPEN_MS = 400, {"low": 8000, "medium": 4000, "high": 2000, "auto": 4000}
MAX_TURN_SECONDS = 120  # a turn without a pause ends then, and the next one begins
ENDS = (".", "!", "?", "\u3002", "\uff01", "\uff1f", "\u2026")


class Turn(msgspec.Struct, frozen=True):
    """A change that was noticed: `begun` and `ended` with a sample, `paused` where a turn may have ended."""

    kind: Literal["begun", "paused", "resumed", "ended"]
    at: int


class TurnDetector:
    def __init__(self, config: ServerVad | SemanticVad) -> None:
        self.config = config
        self.speaking = False
        self.text: str | None = None  # what has been said so far, if it is known
        self._frames = 0  # of speech in a row
        self._silence = 0  # frames in a row
        self._begun = 0
        self._floor = 0  # the end of the last turn, before which the next one cannot begin

    def feed(self, probabilities: Sequence[float], end: int) -> Iterator[Turn]:
        """Yield what is noticed in frames of which the last one ends at `end`."""
        at = end - len(probabilities) * FRAME_SAMPLES
        for probability in probabilities:
            at += FRAME_SAMPLES
            yield from self._frame(probability, at)

    def _frame(self, probability: float, end: int) -> Iterator[Turn]:
        threshold = self.config.threshold if isinstance(self.config, ServerVad) else 0.5
        if not self.speaking:
            self._frames = self._frames + 1 if probability >= threshold else 0
            if self._frames == SPEECH_FRAMES:
                padding_ms = (
                    self.config.prefix_padding_ms if isinstance(self.config, ServerVad) else PADDING_MS
                )
                padding = padding_ms * SAMPLES_PER_SECOND // 1000
                self._begun = max(self._floor, end - SPEECH_FRAMES * FRAME_SAMPLES - padding, 0)
                self.speaking, self._silence, self.text = True, 0, None
                yield Turn("begun", self._begun)
            return
        if probability >= max(threshold - END_THRESHOLD_DROP, 0.01):
            if self._silence >= PAUSE_FRAMES:
                self.text = None
                yield Turn("resumed", end)
            self._silence = 0
        else:
            self._silence += 1
            if self._silence == PAUSE_FRAMES:
                yield Turn("paused", end)
        quiet = self._silence * FRAME_SAMPLES * 1000 >= self._patience_ms * SAMPLES_PER_SECOND
        if quiet or end - self._begun > MAX_TURN_SECONDS * SAMPLES_PER_SECOND:
            yield self.end(end)

    def end(self, at: int) -> Turn:
        self.speaking, self._frames, self._floor = False, 0, at
        return Turn("ended", at)

    @property
    def _patience_ms(self) -> int:
        """Return the milliseconds of silence that end the turn."""
        if isinstance(self.config, ServerVad):
            return max(self.config.silence_duration_ms, 1)
        if self.text is not None and self.text.rstrip().endswith(ENDS):
            return ENDED_MS
        return OPEN_MS[self.config.eagerness]


SHORTEST_MS = 100  # of what can be committed
KEPT_SECONDS = 2  # between turns, with voice activity
MOST_SECONDS = MAX_TURN_SECONDS + 10

Ear = Callable[[bytes], bytes]  # from the client's format to 16 kHz, with a state of its own


class InputBuffer:
    """Positions are samples at 16 kHz since the session began."""

    def __init__(self, make_ear: Callable[[Format], Ear]) -> None:
        self._make_ear = make_ear
        self.begin = self.end = 0
        self._raw, self._audio = bytearray(), bytearray()
        self.set_format(Pcm())

    def set_format(self, format_: Format) -> None:
        self._format = format_
        self._ear = self._make_ear(format_)
        self._a_second = bytes_a_second(format_)
        self._raw.clear()
        self._audio.clear()
        self.begin = self.end

    def append(self, encoded: Any, room: float = MOST_SECONDS) -> bytes:
        """Add base64; return the audio that is new. `room`: the seconds that fit. Raises EventError."""
        if not isinstance(encoded, str):
            raise EventError.at("audio", "expected a string of base64")
        try:
            raw = base64_bytes(encoded)
        except binascii.Error:
            raise EventError.at("audio", "not valid base64") from None
        if isinstance(self._format, Pcm) and len(raw) % 2:
            raise EventError.at("audio", f"{len(raw)} bytes are no whole samples of 16 bits")
        if (len(self._raw) + len(raw)) / self._a_second > room:
            raise EventError.at(
                "audio",
                f"the buffer is full: at most {MAX_TURN_SECONDS} s; commit or clear it",
                "input_audio_buffer_full",
            )
        heard = self._ear(raw)
        self._raw += raw
        self._audio += heard
        self.end += len(heard) // 2
        return heard

    def converted(self, raw: bytes) -> bytes:
        """Return audio that is not of the buffer at 16 kHz."""
        return self._make_ear(self._format)(raw)

    @property
    def milliseconds(self) -> int:
        return len(self._raw) * 1000 // self._a_second

    def audio(self, start: int, end: int) -> bytes:
        """Return what was heard from one sample to another."""
        start, end = max(start, self.begin), max(end, self.begin)
        return bytes(self._audio[(start - self.begin) * 2 : (end - self.begin) * 2])

    def raw(self, start: int, end: int) -> bytes:
        """Return the same as it came."""
        first, last = (self._place(max(at, self.begin)) for at in (start, end))
        return bytes(self._raw[first:last])

    def drop(self, before: int) -> None:
        """Forget what is before a sample."""
        before = min(before, self.end)
        if before <= self.begin:
            return
        del self._raw[: self._place(before)]
        del self._audio[: (before - self.begin) * 2]
        self.begin = before

    def clear(self) -> None:
        self.drop(self.end)
        self._raw.clear()

    def trim(self, looked: int) -> None:
        """Forget all but the last seconds of what was `looked` at: more may have come since."""
        if looked - self.begin > 2 * KEPT_SECONDS * SAMPLES_PER_SECOND:  # seldom, because what stays is moved
            self.drop(looked - KEPT_SECONDS * SAMPLES_PER_SECOND)

    def _place(self, at: int) -> int:
        place = (at - self.begin) * self._a_second // SAMPLES_PER_SECOND
        return place & ~1 if isinstance(self._format, Pcm) else place


DELTA_MS = 400  # of audio in one event: below the 1 MiB at which some clients close
INPUT_TOKENS_A_SECOND, OUTPUT_TOKENS_A_SECOND = 10, 20  # of audio, as OpenAI counts it

Emit = Callable[..., None]


class Response:
    """`conversation` is None for a response apart from it."""

    def __init__(
        self, emit: Emit, conversation: Conversation | None, config: ResponseConfig, heard_ms: int
    ) -> None:
        self.id = new_id("resp")
        self.run = Run(self.id)
        self.config = config
        self.conversation = conversation
        self.items: list[Item] = []
        self.audio_ms = 0
        self.tokens = Tokens()  # so far
        self.prompt_items: list[Item] = []  # what the model is to read, until it has been sent
        self.waits_for: set[str] = set()  # of these, the ones whose transcripts are still to come
        self._emit = emit
        self._heard_ms = heard_ms  # of user audio since the last response
        self._open: Item | None = None  # the message that is being written
        self._text: list[str] = []  # of it
        self._emit("response.created", response=self._as_dict("in_progress"))

    # -- what the model makes

    def add_text(self, text: str) -> None:
        """Add text of an answer that is not spoken."""
        if self._open is None:
            text = text.lstrip()
        if not text:
            return
        item = self._message()
        self._text.append(text)
        self._at(item, "response.output_text.delta", content_index=0, delta=text)

    def add_speech(self, text: str, audio: bytes) -> None:
        if not text and not audio:
            return
        item = self._message()
        if text:
            self._text.append(text)
            self._at(item, "response.output_audio_transcript.delta", content_index=0, delta=text)
        rate = bytes_a_second(self.config.audio.output.format) // 1000
        start = item.audio_ms
        size = DELTA_MS * rate
        for at in range(0, len(audio), size):
            delta = base64.b64encode(audio[at : at + size]).decode()
            self._at(item, "response.output_audio.delta", content_index=0, delta=delta)
        item.audio_ms += len(audio) // rate
        self.audio_ms += len(audio) // rate
        item.sentences.append(Heard(text, start, item.audio_ms))
        if self.conversation is not None:
            self.conversation.keep_audio(item, audio)

    def add_call(self, call: ToolCall) -> None:
        """Add a call of a client's tool, which is whole."""
        self._close("completed")
        value: Json = {"id": new_id("item"), "object": "realtime.item", "type": "function_call"}
        value |= {"status": "in_progress", "name": call.name, "call_id": call.id, "arguments": ""}
        item = self._add(Item(value))
        common = {"call_id": call.id}
        self._at(item, "response.function_call_arguments.delta", **common, delta=call.arguments)
        self._at(
            item, "response.function_call_arguments.done", **common, name=call.name, arguments=call.arguments
        )
        self._finish(item, "completed", arguments=call.arguments)

    # -- its end

    def finish(self, status: str, *, reason: str | None = None, error: OvserveError | None = None) -> None:
        """End the response. `status` is completed, cancelled, incomplete or failed."""
        self._close("completed" if status == "completed" else "incomplete")
        details: Json = {"type": status}
        if reason is not None:
            details["reason"] = reason
        if error is not None:
            details["error"] = {"type": error.kind, "code": error.code or error.kind, "message": str(error)}
        response = self._as_dict(status)
        response |= {"status_details": details, "usage": self._usage()}
        self._emit("response.done", response=response)

    def _usage(self) -> Json:
        """Tokens of text are the model's, those of audio are counted by its length."""
        heard = -(-self._heard_ms * INPUT_TOKENS_A_SECOND // 1000)
        spoken = -(-self.audio_ms * OUTPUT_TOKENS_A_SECOND // 1000)
        tokens = self.tokens
        num_input, num_output = tokens.read + heard, tokens.written + spoken
        return {
            "total_tokens": num_input + num_output,
            "input_tokens": num_input,
            "output_tokens": num_output,
            "input_token_details": {
                "text_tokens": tokens.read,
                "audio_tokens": heard,
                "image_tokens": 0,
                "cached_tokens": tokens.cached,
                "cached_tokens_details": {"text_tokens": tokens.cached, "audio_tokens": 0, "image_tokens": 0},
            },
            "output_token_details": {"text_tokens": tokens.written, "audio_tokens": spoken},
        }

    # -- items

    def _message(self) -> Item:
        """Return the message that is being written, a new one if there is none."""
        if self._open is None:
            value: Json = {"id": new_id("item"), "object": "realtime.item", "type": "message"}
            value |= {"status": "in_progress", "role": "assistant", "content": []}
            self._open = self._add(Item(value))
            self._at(self._open, "response.content_part.added", content_index=0, part=self._part(""))
        return self._open

    def _part(self, text: str) -> Json:
        return {"type": "audio", "transcript": text} if self.config.speaks else {"type": "text", "text": text}

    def _close(self, status: str) -> None:
        item, self._open = self._open, None
        if item is None:
            return
        text, self._text = "".join(self._text).strip() if self.config.speaks else "".join(self._text), []
        if self.config.speaks:
            self._at(item, "response.output_audio.done", content_index=0)
            self._at(item, "response.output_audio_transcript.done", content_index=0, transcript=text)
            content = {"type": "output_audio", "transcript": text}
        else:
            self._at(item, "response.output_text.done", content_index=0, text=text)
            content = {"type": "output_text", "text": text}
        self._at(item, "response.content_part.done", content_index=0, part=self._part(text))
        self._finish(item, status, content=[content])

    def _add(self, item: Item) -> Item:
        self.items.append(item)
        self._emit(
            "response.output_item.added", response_id=self.id, output_index=self._index, item=item.value
        )
        if self.conversation is not None:
            previous = self.conversation.add(item, bounded=False)
            self._emit("conversation.item.added", previous_item_id=previous, item=item.value)
        return item

    def _finish(self, item: Item, status: str, **values: Any) -> None:
        # Events that are still to be written hold the old value, so it is replaced and not changed.
        before = item.size
        item.value = {**item.value, "status": status, **values}
        if self.conversation is not None:
            self.conversation.grew(item.size - before)
            previous = self.conversation.previous_of(item.id)
            self._emit("conversation.item.done", previous_item_id=previous, item=item.value)
        self._emit(
            "response.output_item.done", response_id=self.id, output_index=self._index, item=item.value
        )

    @property
    def _index(self) -> int:
        return len(self.items) - 1

    def _at(self, item: Item, type_: str, **fields: Any) -> None:
        self._emit(type_, response_id=self.id, item_id=item.id, output_index=self._index, **fields)

    def _as_dict(self, status: str) -> Json:
        config = self.config
        format_ = msgspec.to_builtins(config.audio.output.format)
        output = {"format": format_, "voice": config.audio.output.voice}
        return {
            "id": self.id,
            "object": "realtime.response",
            "status": status,
            "status_details": None,
            "output": [item.value for item in self.items],
            "conversation_id": self.conversation.id if self.conversation is not None else None,
            "output_modalities": list(config.output_modalities),
            "audio": {"output": output if config.speaks else None},
            "max_output_tokens": config.max_output_tokens,
            "metadata": config.metadata,
            "usage": None,
        }
