"""The items of a session in their order, and the messages that a language model gets of them."""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ovserve.api.openai.realtime.config import EventError
from ovserve.errors import shortened
from ovserve.llm.audio import base64_bytes

MAX_ITEMS = 2000
MAX_CHARACTERS = 2_000_000  # of all items together
MAX_AUDIO_BYTES = 32 << 20  # kept for `conversation.item.retrieve`; the oldest goes first
CLAMP_MS = 250  # clients ask for a cut up to this far beyond the audio, because their clocks differ

_ID = re.compile(r"[\w.:-]{1,128}")
_WORD = re.compile(r"\s*\S+")
_TEXT_PARTS = {"system": ("input_text",), "user": ("input_text",), "assistant": ("output_text", "text")}

Json = dict[str, Any]


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


@dataclass
class Heard:
    """A spoken stretch of an assistant's item, a sentence or clause, in milliseconds of its audio."""

    text: str
    start: int
    end: int


@dataclass
class Item:
    """`value` is the item as events show it, without audio bytes."""

    value: Json
    audio: bytearray = field(default_factory=bytearray)  # in the format of the session at that time
    sentences: list[Heard] = field(default_factory=list)  # of a spoken answer
    audio_ms: int = 0
    pending: bool = False  # its transcript is still to come
    failed: str = ""  # why there is no transcript

    @property
    def id(self) -> str:
        return str(self.value["id"])

    @property
    def speech(self) -> Json | None:
        """The part with audio, if there is one."""
        parts = self.value.get("content", ())
        return next((p for p in parts if p["type"] in ("input_audio", "output_audio")), None)

    @property
    def size(self) -> int:
        """The characters that a model reads of it."""
        parts = self.value.get("content", ())
        texts = [part.get("text") or part.get("transcript") or "" for part in parts]
        return sum(map(len, texts)) + len(self.value.get("arguments", "")) + len(self.value.get("output", ""))

    def with_audio(self) -> Json:
        """Return the item with its audio, for `conversation.item.retrieved`."""
        if not self.audio:
            return self.value
        sound = {"audio": base64.b64encode(self.audio).decode()}
        content: list[Json] = self.value["content"]
        speech = self.speech
        return {**self.value, "content": [part | sound if part is speech else part for part in content]}

    def cut(self, end_ms: int) -> None:
        """Keep what was heard in the first `end_ms` of a spoken answer: whole sentences, and of the one that
        was interrupted as many words as its share of time."""
        sentences: list[Heard] = []
        for sentence in self.sentences:
            if sentence.end <= end_ms:
                sentences.append(sentence)
                continue
            words = _WORD.findall(sentence.text)
            share = max(0, end_ms - sentence.start) / max(1, sentence.end - sentence.start)
            if text := "".join(words[: int(share * len(words))]):
                sentences.append(Heard(text, sentence.start, end_ms))
            break
        del self.audio[round(len(self.audio) * end_ms / max(1, self.audio_ms)) & ~1 :]
        self.sentences, self.audio_ms = sentences, end_ms
        if (part := self.speech) is not None:
            part["transcript"] = "".join(sentence.text for sentence in sentences).strip()


class Conversation:
    """The items by id, in order. A dict keeps the order and finds an id in constant time."""

    def __init__(self) -> None:
        self.id = new_id("conv")
        self._items: dict[str, Item] = {}
        self._characters = 0
        self._audio = 0  # bytes kept

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> list[Item]:
        return list(self._items.values())

    @property
    def last_id(self) -> str | None:
        return next(reversed(self._items), None)

    def find(self, id_: str) -> Item | None:
        return self._items.get(id_)

    def get(self, id_: Any, param: str = "item_id") -> Item:
        """Raises EventError for an unknown id."""
        item = self._items.get(id_) if isinstance(id_, str) else None
        if item is None:
            raise EventError.at(param, f"no item has the id {shortened(str(id_))!r}", "item_not_found")
        return item

    def add(self, item: Item, previous: str | None = None, *, bounded: bool = True) -> str | None:
        """Add an item after `previous` ("root": first; None: last); return the id before it.

        Raises EventError for an id that exists or does not, and if `bounded` for a conversation that is full.
        """
        if item.id in self._items:
            raise EventError.at("item.id", f"{item.id!r} exists already", event_code="item_already_exists")
        if previous not in (None, "root"):
            self.get(previous, "previous_item_id")
        if bounded and (len(self._items) >= MAX_ITEMS or self._characters + item.size > MAX_CHARACTERS):
            raise EventError(
                f"the conversation is full: at most {MAX_ITEMS} items and {MAX_CHARACTERS} characters; "
                "delete items",
                "item",
                "conversation_full",
            )
        before: str | None = self.last_id
        if previous is None or previous == before:
            self._items[item.id] = item
        else:
            before = None if previous == "root" else previous
            ordered: dict[str, Item] = {} if before else {item.id: item}
            for id_, existing in self._items.items():
                ordered[id_] = existing
                if id_ == before:
                    ordered[item.id] = item
            self._items = ordered
        self._characters += item.size
        self._bound_audio(len(item.audio))
        return before

    def previous_of(self, id_: str) -> str | None:
        """Return the id before an item; it is nearly always the last."""
        ids = reversed(self._items)
        for other in ids:
            if other == id_:
                return next(ids, None)
        return None

    def grew(self, characters: int) -> None:
        """Record text that an item got after it was added."""
        self._characters += characters

    def keep_audio(self, item: Item, audio: bytes) -> None:
        """Keep the audio of an item, at the cost of the oldest."""
        item.audio += audio
        self._bound_audio(len(audio))

    def _bound_audio(self, more: int) -> None:
        self._audio += more
        if self._audio <= MAX_AUDIO_BYTES:
            return
        for old in self._items.values():
            if old.audio:
                self._audio -= len(old.audio)
                old.audio = bytearray()
                if self._audio <= MAX_AUDIO_BYTES:
                    return

    def delete(self, id_: Any) -> Item:
        item = self.get(id_)
        if item.value.get("status") == "in_progress":
            raise EventError.at("item_id", f"{item.id!r} is being generated; cancel its response first")
        del self._items[item.id]
        self._characters -= item.size
        self._audio -= len(item.audio)
        return item

    def truncate(self, event: Mapping[str, Any]) -> tuple[Item, int]:
        """Cut a spoken answer; return it with the milliseconds that were kept. Raises EventError."""
        item = self.get(event.get("item_id"))
        end, index = event.get("audio_end_ms"), event.get("content_index")
        if index != 0 or isinstance(index, bool):
            raise EventError.expected("content_index", "0", index)
        if not isinstance(end, int) or isinstance(end, bool) or end < 0:
            raise EventError.expected("audio_end_ms", "an integer of 0 or more", end)
        spoken = item.value.get("role") == "assistant" and item.speech is not None
        if not spoken or not item.audio_ms:
            raise EventError.at(
                "item_id",
                "only an assistant's message with audio can be truncated",
                "unsupported_content_type",
            )
        if end > item.audio_ms + CLAMP_MS:
            raise EventError.at(
                "audio_end_ms", f"the audio of {item.audio_ms}ms is already shorter than {end}ms"
            )
        end = min(end, item.audio_ms)
        before, remaining = item.size, len(item.audio)
        item.cut(end)
        self._characters += item.size - before
        self._audio += len(item.audio) - remaining
        return item, end


def client_item(fields: Any, param: str = "item") -> Item:
    """Return the item that a client creates. Raises EventError naming the field."""
    if not isinstance(fields, dict):
        raise EventError.expected(param, "an object", fields)
    id_ = fields.get("id") or new_id("item")
    if not isinstance(id_, str) or not _ID.fullmatch(id_):
        raise EventError.expected(f"{param}.id", "1 to 128 letters, digits, _ . : or -", id_)
    value: Json = {"id": id_, "object": "realtime.item", "type": fields.get("type"), "status": "completed"}
    match fields.get("type"):
        case "message":
            value |= _message(fields, param)
        case "function_call":
            value |= _strings({"call_id": new_id("call"), **fields}, param, "name", "arguments", "call_id")
        case "function_call_output":
            value |= _strings(fields, param, "call_id", "output")
        case other:
            raise EventError.expected(
                f"{param}.type", "message, function_call or function_call_output", other
            )
    item = Item(value)
    sounds = [part for part in value.get("content", ()) if part["type"] == "input_audio"]
    if len(sounds) > 1:
        raise EventError.at(f"{param}.content", "at most one part may be input_audio")
    for part in sounds:
        item.audio += part.pop("audio")
        item.pending = part["transcript"] is None
    return item


def _strings(fields: Json, param: str, *names: str) -> Json:
    for name in names:
        if not isinstance(fields.get(name), str):
            raise EventError.expected(f"{param}.{name}", "a string", fields.get(name))
    return {name: fields[name] for name in names}


def _message(fields: Json, param: str) -> Json:
    role, content = fields.get("role"), fields.get("content")
    if not isinstance(role, str) or role not in _TEXT_PARTS:
        raise EventError.expected(f"{param}.role", "system, user or assistant", role)
    if not isinstance(content, list) or not content:
        raise EventError.expected(f"{param}.content", "a non-empty array", content)
    return {"role": role, "content": [_part(p, role, f"{param}.content[{i}]") for i, p in enumerate(content)]}


def _part(part: Any, role: str, param: str) -> Json:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _TEXT_PARTS[role]:
        text = part.get("text")
        if not isinstance(text, str):
            raise EventError.expected(f"{param}.text", "a string", text)
        return {"type": "output_text" if role == "assistant" else kind, "text": text}
    if kind == "input_audio" and role == "user":
        try:
            audio = base64_bytes(part.get("audio", ""))
        except (binascii.Error, AttributeError):  # or a number
            raise EventError.at(f"{param}.audio", "not base64") from None
        transcript = part.get("transcript")
        return {
            "type": kind,
            "transcript": transcript if isinstance(transcript, str) else None,
            "audio": audio,
        }
    expected = _TEXT_PARTS[role][0] + (" or input_audio" if role == "user" else "")
    raise EventError.expected(f"{param}.type", expected, kind)


def messages_of(instructions: str, items: Sequence[Item]) -> list[Json]:
    """Return items as chat messages. Calls that follow one another are one message, as models expect."""
    messages: list[Json] = [{"role": "system", "content": instructions}] if instructions else []
    names: dict[str, str] = {}  # of calls, which some templates show with their outputs
    for item in items:
        value = item.value
        match value["type"]:
            case "message":
                texts = [part.get("text") or part.get("transcript") or "" for part in value["content"]]
                if text := " ".join(filter(None, texts)):
                    messages.append({"role": value["role"], "content": text})
            case "function_call":
                names[value["call_id"]] = value["name"]
                function = {"name": value["name"], "arguments": value["arguments"] or "{}"}
                call = {"id": value["call_id"], "type": "function", "function": function}
                if messages and messages[-1].get("tool_calls"):
                    messages[-1]["tool_calls"].append(call)
                else:
                    messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            case "function_call_output":
                output = {"role": "tool", "tool_call_id": value["call_id"], "content": value["output"]}
                name = names.get(value["call_id"])
                messages.append(output | ({"name": name} if name is not None else {}))
    return messages
