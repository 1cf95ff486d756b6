"""Files of a request: how a client sends them, and the markers that hold their places until they are read.

An endpoint puts a marker into a message's text for each file and keeps a FileSource. `sandbox/images/`
reads the text of a document, a speech-to-text model that of audio; it replaces the marker before the
conversation is rendered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ovserve.llm.prompt.chat_template import Conversation, EncodedConversation

MAX_NAME = 256  # characters


class FileSource(msgspec.Struct, frozen=True):
    """`data` is base64 or a data URL with base64."""

    mark: str
    data: str
    param: str  # the field that held it, for errors
    name: str = ""
    audio: bool = False


def document_text(name: str | None, text: str) -> str:
    """The text that the model reads of a document."""
    title = " ".join((name or "").split())[:MAX_NAME]
    return f"[File {title}]\n{text}" if title else f"[File]\n{text}"


def with_files(
    conversation: Conversation | EncodedConversation, sources: Sequence[FileSource], texts: Sequence[str]
) -> Conversation | EncodedConversation:
    """The conversation with the text of each file in its place. Changes the messages, which are also
    used to explain a prompt that is too long."""
    pairs = zip(sources, texts, strict=True)
    # What was said stands there as if it had been written.
    places = {file.mark: text if file.audio else document_text(file.name, text) for file, text in pairs}
    if isinstance(conversation, EncodedConversation):
        inside = {mark.encode(): msgspec.json.encode(text)[1:-1] for mark, text in places.items()}
        marks = re.compile(b"|".join(map(re.escape, inside)))
        return msgspec.structs.replace(
            conversation, json=marks.sub(lambda match: inside[match[0]], conversation.json)
        )
    messages = [_with_texts(message, places) for message in conversation.messages]
    return msgspec.structs.replace(conversation, messages=messages)


def _with_texts(message: Mapping[str, Any], places: Mapping[str, str]) -> Mapping[str, Any]:
    content = message.get("content")
    if not isinstance(content, str) or not isinstance(message, dict):
        return message
    for mark, text in places.items():
        if mark in content:
            content = content.replace(mark, text)
    message["content"] = content
    return message
