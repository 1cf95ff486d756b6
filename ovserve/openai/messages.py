"""Chat messages as clients send them, and as chat templates expect them; used by chat and by dialects that
carry the same conversation in other clothes."""

from __future__ import annotations

from typing import Any

import msgspec

from ovserve.errors import InvalidArgument

ROLES = ("system", "developer", "user", "assistant", "tool")


class Part(msgspec.Struct):
    type: str
    text: str | None = None


class FunctionCall(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCallItem(msgspec.Struct):
    function: FunctionCall
    id: str | None = None
    type: str = "function"


class Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCallItem] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


def check_messages(messages: list[Message]) -> None:
    """What types cannot say. Raises InvalidArgument naming the message's index."""
    for i, message in enumerate(messages):
        if message.role not in ROLES:
            param = f"messages[{i}].role"
            raise InvalidArgument(
                f"{param}: expected one of {', '.join(ROLES)}, got {message.role!r}", param=param
            )
        text_of(message.content, f"messages[{i}].content")


def text_of(content: str | list[Part] | None, where: str) -> str:
    """Content as one string. Parts that a text model cannot take are refused by index and type."""
    if not isinstance(content, list):
        return content or ""
    texts = []
    for i, part in enumerate(content):
        param = f"{where}[{i}]"
        if part.type not in ("text", "input_text", "output_text"):
            raise InvalidArgument(
                f"{param}.type: this model takes text only, got {part.type!r}", param=f"{param}.type"
            )
        if part.text is None:
            raise InvalidArgument(f"{param}.text: required, but missing", param=f"{param}.text")
        texts.append(part.text)
    return "\n".join(texts)


def template_message(message: Message, index: int) -> dict[str, Any]:
    """A message as templates of text models expect it: content is one string."""
    plain: dict[str, Any] = {
        "role": message.role,
        "content": text_of(message.content, f"messages[{index}].content"),
    }
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if reasoning := message.reasoning_content or message.reasoning:
        plain["reasoning_content"] = reasoning
    if message.tool_calls:
        plain["tool_calls"] = [_template_call(call) for call in message.tool_calls]
    return plain


def _template_call(call: ToolCallItem) -> dict[str, Any]:
    arguments = call.function.arguments
    if arguments is None:
        arguments = "{}"
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": call.type, "function": function}
