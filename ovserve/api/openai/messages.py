"""Chat messages as clients send them, and as chat templates expect them; used by chat and by dialects that
carry the same conversation in other clothes."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from ovserve.api.openai.describe.operation import doc
from ovserve.api.openai.images import FILE, ImageUrl, Pictures, joined
from ovserve.errors import InvalidArgument

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TEXT_PARTS = ("text", "input_text", "output_text")
IMAGE_PART, DATA_PART = "image_url", "image"  # the latter is Azure's
IMAGE_PARTS = (IMAGE_PART, DATA_PART)
FILE_PART = "file"
PARTS = (*TEXT_PARTS, *IMAGE_PARTS, FILE_PART)


class FileData(msgspec.Struct):
    file_data: Annotated[str | None, doc(FILE)] = None
    filename: Annotated[str | None, doc("stands before the text of the file")] = None
    file_id: Annotated[str | None, doc("rejected: the server keeps no files")] = None


class Part(msgspec.Struct):
    type: Annotated[
        str,
        doc("others are rejected by index and type; an image by a text model", enum=PARTS),
    ]
    text: Annotated[str | None, doc("required but in an image")] = None
    image_url: Annotated[ImageUrl | None, doc("of an image_url part")] = None
    file: Annotated[FileData | None, doc("of a file part")] = None
    content: Annotated[str | None, doc("of an image part, as Azure has them: its file in base64")] = None


class FunctionCall(msgspec.Struct):
    name: Annotated[str, doc("given to the chat template")]
    arguments: Annotated[
        str | dict[str, Any] | None, doc("JSON text or an object, given to the chat template")
    ] = None


class ToolCallItem(msgspec.Struct):
    function: Annotated[FunctionCall, doc("the function called and its arguments")]
    id: Annotated[str | None, doc("given to the chat template")] = None
    type: Annotated[str, doc("given to the chat template")] = "function"


class Message(msgspec.Struct):
    role: Annotated[
        str, doc("in any order; a template without developer gets system, function is tool", enum=ROLES)
    ]
    content: Annotated[
        str | list[Part] | None, doc("text, or parts: texts are joined by newlines; null is empty")
    ] = None
    name: Annotated[str | None, doc("given to the chat template")] = None
    tool_calls: Annotated[list[ToolCallItem] | None, doc("calls made earlier")] = None
    tool_call_id: Annotated[str | None, doc("which call a tool's message answers")] = None
    reasoning_content: Annotated[
        str | None, doc("thoughts of an earlier turn, if the template shows them")
    ] = None
    reasoning: Annotated[str | None, doc("another name of reasoning_content")] = None
    function_call: Annotated[
        FunctionCall | None, doc("the older form of tool_calls: the one call of an assistant's message")
    ] = None


def check_messages(messages: list[Message]) -> None:
    """Check what types cannot express. Raises InvalidArgument naming the message's index."""
    for i, message in enumerate(messages):
        if message.role not in ROLES:
            param = f"messages[{i}].role"
            raise InvalidArgument(
                f"{param}: expected one of {', '.join(ROLES)}, got {message.role!r}", param=param
            )
        text_of(message.content, f"messages[{i}].content", Pictures())


def text_of(content: str | list[Part] | None, where: str, images: Pictures) -> str:
    """Content as one string, with tags for images. Other parts are rejected by index and type."""
    if not isinstance(content, list):
        return content or ""
    pieces = []
    for i, part in enumerate(content):
        param = f"{where}[{i}]"
        if part.type in IMAGE_PARTS:
            at = f"{param}.{'content' if part.type == DATA_PART else IMAGE_PART}"
            image = _data_url(part.content) if part.type == DATA_PART else part.image_url
            pieces.append((images.place(image, None, param, at, part.type), True))
        elif part.type == FILE_PART:
            pieces.append((_file(part.file or FileData(), param, images), False))
        elif part.type not in TEXT_PARTS:
            kinds = f"one of {', '.join(PARTS)}"
            raise InvalidArgument(f"{param}.type: expected {kinds}, got {part.type!r}", param=f"{param}.type")
        elif part.text is None:
            raise InvalidArgument(f"{param}.text: required, but missing", param=f"{param}.text")
        else:
            pieces.append((part.text, False))
    return joined(pieces)


def _file(file: FileData, where: str, images: Pictures) -> str:
    if file.file_id is not None:
        refuse_file_id(file.file_id, f"{where}.{FILE_PART}.file_id")
    at = f"{where}.{FILE_PART}.file_data"
    return images.place_file(file.file_data, file.filename, where, at, FILE_PART)


def refuse_file_id(file_id: str, param: str) -> None:
    """Raises InvalidArgument."""
    raise InvalidArgument(
        f"{param}: this server keeps no files, so send file_data; got {file_id!r}", param=param
    )


def _data_url(data: str | None) -> str | None:
    """Make a data URL of base64 alone, as Azure has it; a data URL is returned as it is."""
    return data if not data or data.startswith("data:") else f"data:;base64,{data}"


def template_message(message: Message, index: int, images: Pictures) -> dict[str, Any]:
    """A message as templates expect it: content is one string, with tags for its images."""
    plain: dict[str, Any] = {
        "role": message.role,
        "content": text_of(message.content, f"messages[{index}].content", images),
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
