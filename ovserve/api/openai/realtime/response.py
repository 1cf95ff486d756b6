"""One response: its items and events in the order that clients rely on.

Each `added` has its `done`, also when the response is cancelled, and `response.done` is the last.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import msgspec

from ovserve.api.openai.realtime.config import ResponseConfig, bytes_a_second
from ovserve.api.openai.realtime.conversation import Conversation, Heard, Item, Json, new_id
from ovserve.api.openai.realtime.packets import Run, Tokens
from ovserve.errors import OvserveError
from ovserve.llm.output import ToolCall

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

    def finish(
        self,
        status: str,
        *,
        reason: str | None = None,
        error: OvserveError | None = None,
    ) -> None:
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
