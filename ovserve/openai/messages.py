"""Chat messages as clients send them, and as chat templates expect them; used by chat and by dialects that
carry the same conversation in other clothes."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from ovserve.errors import InvalidArgument
from ovserve.openai.operation import about

ROLES = ("system", "developer", "user", "assistant", "tool")
TEXT_PARTS = ("text", "input_text", "output_text")


class Part(msgspec.Struct):
    type: Annotated[str, about("others are refused by index and type", enum=TEXT_PARTS)]
    text: Annotated[str | None, about("required")] = None


class FunctionCall(msgspec.Struct):
    name: Annotated[str, about("given to the chat template")]
    arguments: Annotated[
        str | dict[str, Any] | None, about("JSON text or an object, given to the chat template")
    ] = None


class ToolCallItem(msgspec.Struct):
    function: Annotated[FunctionCall, about("the function called and its arguments")]
    id: Annotated[str | None, about("given to the chat template")] = None
    type: Annotated[str, about("given to the chat template")] = "function"


class Message(msgspec.Struct):
    role: Annotated[str, about("in any order; a template without developer gets system", enum=ROLES)]
    content: Annotated[
        str | list[Part] | None, about("text, or parts of text, which are joined by newlines; null is empty")
    ] = None
    name: Annotated[str | None, about("given to the chat template")] = None
    tool_calls: Annotated[list[ToolCallItem] | None, about("calls made earlier")] = None
    tool_call_id: Annotated[str | None, about("which call a tool's message answers")] = None
    reasoning_content: Annotated[
        str | None, about("thoughts of an earlier turn, if the template shows them")
    ] = None
    reasoning: Annotated[str | None, about("another name of reasoning_content")] = None


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
        if part.type not in TEXT_PARTS:
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
