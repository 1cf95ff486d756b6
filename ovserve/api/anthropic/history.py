"""Anthropic's conversation as OpenAI's messages, which chat templates are fed with. Used by `messages.py`.

A tool_result block becomes a message of its own with role tool; tool_use blocks become tool_calls; thinking
becomes reasoning. Of blocks that tools at Anthropic made, the text is kept. Those without text mean nothing
to another model, like redacted thinking; they are dropped and reported. So is the line that Claude Code puts
in front of its system prompt: it differs in every request and would keep the prefix cache from ever being
hit."""

from __future__ import annotations

from typing import Any

import msgspec

from ovserve.api.anthropic.body import Block, CountRequest, Turn
from ovserve.api.openai.faults import explain
from ovserve.api.openai.images import Pictures, joined
from ovserve.api.openai.messages import FunctionCall, Message, ToolCallItem, is_foreign, readable
from ovserve.errors import InvalidArgument
from ovserve.llm.files import document_text

BILLING = "x-anthropic-billing-header"
ROLES = ("user", "assistant", "system")
KINDS = ("text", "image", "document", "thinking", "redacted_thinking", "tool_use", "tool_result")


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
            messages += _user(turn, where, images, dropped)
    return messages, dropped


def loosen_blocks(body: Any) -> None:
    """Put all fields of blocks of other kinds into `content`, which may be of any type."""
    turns = body.get("messages") if isinstance(body, dict) else None
    for owner in [body, *(turns if isinstance(turns, list) else ())]:
        name = "system" if owner is body else "content"
        if isinstance(owner, dict) and isinstance(owner.get(name), list):
            owner[name] = [_loose(block) for block in owner[name]]


def _loose(block: Any) -> Any:
    return {"type": block["type"], "content": block} if is_foreign(block, KINDS) else block


def _foreign(block: Block, dropped: list[str]) -> str:
    """Return the text of a block of another kind; one without text is dropped."""
    source = block.source if isinstance(block.source, str) else None
    text = readable(block.title, source, block.text, block.content)
    if not text:
        dropped.append(f"messages.{block.type}")
    return text


def _system(system: str | list[Block] | None, dropped: list[str]) -> list[Message]:
    blocks = [Block("text", system)] if isinstance(system, str) else system or []
    texts = []
    for i, block in enumerate(blocks):
        where = "system" if isinstance(system, str) else f"system[{i}]"
        text = _text(block, where) if block.type in KINDS else _foreign(block, dropped)
        if text.lstrip().startswith(BILLING):
            dropped.append(f"system.{BILLING}")
            text = text.lstrip().partition("\n")[2]
        if text:
            texts.append(text)
    return [Message("system", "\n".join(texts))] if texts else []


def _user(turn: Turn, where: str, images: Pictures, dropped: list[str]) -> list[Message]:
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
            answer = _result(block, at, images, dropped)
            messages.append(
                Message("tool", answer, tool_call_id=_required(block.tool_use_id, f"{at}.tool_use_id"))
            )
        else:
            pieces += _pieces(block, at, images, dropped)
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
            arguments = {} if block.input is None else block.input
            if not isinstance(arguments, dict | str):
                raise InvalidArgument(
                    f"{at}.input: expected an object, got {_show(arguments)}", param=f"{at}.input"
                )
            # As text, like OpenAI's clients: what a template wants instead is found in one place.
            if isinstance(arguments, dict):
                arguments = msgspec.json.encode(arguments).decode()
            calls.append(ToolCallItem(FunctionCall(name, arguments), _required(block.id, f"{at}.id")))
        elif block.type in KINDS:
            texts.append(_text(block, at))
        elif text := _foreign(block, dropped):
            texts.append(text)
    return Message(
        "assistant",
        "\n".join(texts),
        tool_calls=calls or None,
        reasoning_content="\n".join(thoughts) or None,
    )


def _result(block: Block, where: str, images: Pictures, dropped: list[str]) -> str:
    """Return the result of a tool as text; a failure says so, because templates have no field for it."""
    content = _inner(block.content, f"{where}.content", images, dropped)
    return f"Error: {content}" if block.is_error else content


def _inner(content: Any, where: str, images: Pictures, dropped: list[str]) -> str:
    """Return a block's own content, a string or blocks, as text with tags for images."""
    if isinstance(content, list):
        try:
            parts = msgspec.convert([_loose(part) for part in content], list[Block])
        except msgspec.ValidationError as exc:
            fault = explain(str(exc), msgspec.json.encode(content), list[Block])
            raise InvalidArgument(f"{where}{fault}", param=f"{where}{fault.param}") from None
        pieces = (_pieces(part, f"{where}[{i}]", images, dropped) for i, part in enumerate(parts))
        return joined([piece for group in pieces for piece in group])
    if content is not None and not isinstance(content, str):
        raise InvalidArgument(f"{where}: expected a string or blocks, got {_show(content)}", param=where)
    return content or ""


def _pieces(block: Block, where: str, images: Pictures, dropped: list[str]) -> list[tuple[str, bool]]:
    """Return a text, or the tag of an image (true), or nothing."""
    if block.type == "image":
        return [(_image(block, where, images), True)]
    if block.type in KINDS and block.type != "document":
        return [(_text(block, where), False)]
    is_document = block.type == "document"
    text = _document(block, where, images, dropped) if is_document else _foreign(block, dropped)
    return [(text, False)] if text else []


def _image(block: Block, where: str, images: Pictures) -> str:
    source, at = block.source, f"{where}.source"
    url, field = "", at
    if isinstance(source, str):
        raise InvalidArgument(f"{at}: expected an object, got {_show(source)}", param=at)
    if source is not None:
        if source.type not in ("base64", "url"):
            raise InvalidArgument(
                f"{at}.type: expected base64 or url, got {source.type!r}", param=f"{at}.type"
            )
        field = f"{at}.data" if source.type == "base64" else f"{at}.url"
        location = source.data if source.type == "base64" else source.url
        url = f"data:;base64,{location}" if location and source.type == "base64" else location or ""
    return images.place(url or None, None, where, field, block.type)


def _document(block: Block, where: str, images: Pictures, dropped: list[str]) -> str:
    source, at = block.source, f"{where}.source"
    if source is None or isinstance(source, str):
        what = "required, but missing" if source is None else f"expected an object, got {_show(source)}"
        raise InvalidArgument(f"{at}: {what}", param=at)
    if source.type == "text":
        return document_text(block.title, _required(source.data, f"{at}.data"))
    if source.type == "content":
        return document_text(block.title, _inner(source.content, f"{at}.content", images, dropped))
    if source.type != "base64":  # a URL, which is not downloaded, or a file that is at Anthropic
        dropped.append(f"messages.document.source.type={source.type}")
        return ""
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
