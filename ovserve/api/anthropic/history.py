"""Anthropic's conversation as OpenAI's messages, which chat templates are fed with. Used by `messages.py`.

A tool_result block becomes a message of its own with role tool; tool_use blocks become tool_calls; thinking
becomes reasoning. Redacted thinking means nothing to another model; it is dropped and reported, as is the
line that Claude Code puts in front of its system prompt: it differs in every request and would keep the
prefix cache from ever being hit."""

from __future__ import annotations

from typing import Any

import msgspec

from ovserve.api.anthropic.body import Block, CountRequest, Turn
from ovserve.api.openai.faults import explain
from ovserve.api.openai.images import Pictures, joined
from ovserve.api.openai.messages import FunctionCall, Message, ToolCallItem
from ovserve.errors import InvalidArgument
from ovserve.llm.files import shown

BILLING = "x-anthropic-billing-header"
ROLES = ("user", "assistant", "system")


def to_messages(body: CountRequest, images: Pictures) -> tuple[list[Message], list[str]]:
    """The messages, with tags for images, and names of what was dropped. Raises InvalidArgument naming the
    block."""
    dropped: list[str] = []
    messages = _system(body.system, dropped)
    for i, turn in enumerate(body.messages):
        where = f"messages[{i}]"
        if turn.role not in ROLES:
            raise InvalidArgument(
                f"{where}.role: expected one of {', '.join(ROLES)}, got {turn.role!r}", param=f"{where}.role"
            )
        if turn.role == "assistant":
            messages.append(_assistant(turn, where, dropped))
        else:
            messages += _user(turn, where, images)
    return messages, dropped


def _system(system: str | list[Block] | None, dropped: list[str]) -> list[Message]:
    blocks = [Block("text", system)] if isinstance(system, str) else system or []
    texts = []
    for i, block in enumerate(blocks):
        text = _text(block, "system" if isinstance(system, str) else f"system[{i}]")
        if text.lstrip().startswith(BILLING):
            dropped.append(f"system.{BILLING}")
            text = text.lstrip().partition("\n")[2]
        if text:
            texts.append(text)
    return [Message("system", "\n".join(texts))] if texts else []


def _user(turn: Turn, where: str, images: Pictures) -> list[Message]:
    if isinstance(turn.content, str):
        return [Message(turn.role, turn.content)]
    messages: list[Message] = []
    pieces: list[tuple[str, bool]] = []

    def close() -> None:
        if pieces:
            messages.append(Message(turn.role, joined(pieces)))
            pieces.clear()

    for i, block in enumerate(turn.content):
        at = f"{where}.content[{i}]"
        if block.type == "tool_result":
            close()
            answer = _result(block, at, images)
            messages.append(
                Message("tool", answer, tool_call_id=_required(block.tool_use_id, f"{at}.tool_use_id"))
            )
        else:
            pieces.append(_piece(block, at, images))
    close()
    return messages or [Message(turn.role, "")]


def _assistant(turn: Turn, where: str, dropped: list[str]) -> Message:
    if isinstance(turn.content, str):
        return Message("assistant", turn.content)
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCallItem] = []
    for i, block in enumerate(turn.content):
        at = f"{where}.content[{i}]"
        if block.type == "thinking":
            thoughts.append(_required(block.thinking, f"{at}.thinking"))
        elif block.type == "redacted_thinking":
            dropped.append("messages.redacted_thinking")
        elif block.type == "tool_use":
            name = _required(block.name, f"{at}.name")
            if not isinstance(block.input, dict):
                raise InvalidArgument(
                    f"{at}.input: expected an object, got {_show(block.input)}", param=f"{at}.input"
                )
            # As text, like OpenAI's clients: what a template wants instead is found in one place.
            arguments = msgspec.json.encode(block.input).decode()
            calls.append(ToolCallItem(FunctionCall(name, arguments), _required(block.id, f"{at}.id")))
        else:
            texts.append(_text(block, at))
    return Message(
        "assistant",
        "\n".join(texts),
        tool_calls=calls or None,
        reasoning_content="\n".join(thoughts) or None,
    )


def _result(block: Block, where: str, images: Pictures) -> str:
    """Return the result of a tool as text; a failure says so, because templates have no field for it."""
    content = block.content
    if isinstance(content, list):
        try:
            parts = msgspec.convert(content, list[Block])
        except msgspec.ValidationError as exc:
            fault = explain(str(exc), msgspec.json.encode(content), list[Block])
            raise InvalidArgument(f"{where}.content{fault}", param=f"{where}.content{fault.param}") from None
        content = joined([_piece(part, f"{where}.content[{i}]", images) for i, part in enumerate(parts)])
    elif content is not None and not isinstance(content, str):
        raise InvalidArgument(
            f"{where}.content: expected a string or blocks, got {_show(content)}", param=f"{where}.content"
        )
    return f"Error: {content or ''}" if block.is_error else content or ""


def _piece(block: Block, where: str, images: Pictures) -> tuple[str, bool]:
    """A text, or the tag of an image (true)."""
    if block.type == "document":
        return _document(block, where, images), False
    if block.type != "image":
        return _text(block, where), False
    source, at = block.source, f"{where}.source"
    url, field = "", at
    if source is not None:
        if source.type not in ("base64", "url"):
            raise InvalidArgument(
                f"{at}.type: expected base64 or url, got {source.type!r}", param=f"{at}.type"
            )
        field = f"{at}.data" if source.type == "base64" else f"{at}.url"
        given = source.data if source.type == "base64" else source.url
        url = f"data:;base64,{given}" if given and source.type == "base64" else given or ""
    return images.place(url or None, None, where, field, block.type), True


def _document(block: Block, where: str, images: Pictures) -> str:
    source, at = block.source, f"{where}.source"
    if source is None:
        raise InvalidArgument(f"{at}: required, but missing", param=at)
    if source.type == "text":
        return shown(block.title, _required(source.data, f"{at}.data"))
    if source.type != "base64":
        raise InvalidArgument(
            f"{at}.type: expected one of base64, text, got {source.type!r}", param=f"{at}.type"
        )
    return images.place_file(source.data, block.title, where, f"{at}.data", block.type)


def _text(block: Block, where: str) -> str:
    if block.type != "text":
        raise InvalidArgument(f"{where}.type: expected text here, got {block.type!r}", param=f"{where}.type")
    return _required(block.text, f"{where}.text")


def _required(value: str | None, param: str) -> str:
    if value is None:
        raise InvalidArgument(f"{param}: required, but missing", param=param)
    return value


def _show(value: Any) -> str:
    return msgspec.json.encode(value).decode()[:80]
