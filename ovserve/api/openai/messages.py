"""Chat messages as clients send them, and as chat templates expect them; used by chat and by dialects that
carry the same conversation in other clothes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

import msgspec

from ovserve.api.openai.logprobs import AUDIO, FILE, ImageUrl, Pictures, joined
from ovserve.api.openai.operation import doc
from ovserve.api.openai.tools import input_arguments
from ovserve.errors import InvalidArgument

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TEXT_PARTS = ("text", "input_text", "output_text")
IMAGE_PART, DATA_PART = "image_url", "image"  # the latter is Azure's
IMAGE_PARTS = (IMAGE_PART, DATA_PART)
FILE_PART = "file"
AUDIO_PART, AUDIO_URL_PART = "input_audio", "audio_url"  # the latter is vLLM's
PARTS = (*TEXT_PARTS, *IMAGE_PARTS, FILE_PART, AUDIO_PART, AUDIO_URL_PART)
# Of the assistant's messages alone.
THOUGHT_PARTS = ("thinking", "reasoning", "reasoning_text", "reasoning_content", "summary_text")
REFUSAL_PART = "refusal"
ASSISTANT_PARTS = (*THOUGHT_PARTS, REFUSAL_PART)
# Where text for a model stands in the blocks that other servers make. A source of type text has it in `data`.
TEXT_FIELDS = (
    "title", "url", "thinking", "reasoning", "summary", "text", "content", "source", "stdout", "stderr",
    "error_code",
)  # fmt: skip


class FileData(msgspec.Struct):
    file_data: Annotated[str | None, doc(FILE)] = None
    filename: Annotated[str | None, doc("stands before the text of the file")] = None
    file_id: Annotated[str | None, doc("rejected: the server keeps no files")] = None


class InputAudio(msgspec.Struct):
    data: Annotated[str | None, doc(AUDIO)] = None
    format: Annotated[str, doc("of the file: wav, mp3 and others; its content counts")] = ""


class AudioUrl(msgspec.Struct):
    url: Annotated[str | None, doc(f"a data URL: {AUDIO}")] = None


class Part(msgspec.Struct):
    type: Annotated[
        str,
        doc(
            "others are rejected by index and type, or dropped and reported in an assistant's message; an "
            "image by a text model",
            enum=(*PARTS, *ASSISTANT_PARTS),
        ),
    ]
    text: Annotated[str | None, doc("required but in an image")] = None
    thinking: Annotated[Any, doc("of a thinking part: thoughts of an earlier turn, a text or parts")] = None
    reasoning: Annotated[Any, doc("the same of a reasoning part")] = None
    summary: Annotated[Any, doc("the same of a reasoning part")] = None
    refusal: Annotated[str | None, doc("of a refusal part: its text")] = None
    image_url: Annotated[str | ImageUrl | None, doc("of an image_url part; a text is its URL")] = None
    file: Annotated[FileData | None, doc("of a file part")] = None
    input_audio: Annotated[InputAudio | None, doc("of an input_audio part")] = None
    audio_url: Annotated[AudioUrl | None, doc("of an audio_url part")] = None
    content: Annotated[str | None, doc("of an image part, as Azure has them: its file in base64")] = None


class FunctionCall(msgspec.Struct):
    name: Annotated[str, doc("given to the chat template")]
    arguments: Annotated[
        str | dict[str, Any] | None, doc("JSON text or an object, given to the chat template")
    ] = None


class CustomCall(msgspec.Struct):
    name: Annotated[str, doc("of the custom tool")]
    input: Annotated[str, doc("its input, text")]


class ToolCallItem(msgspec.Struct):
    function: Annotated[FunctionCall | None, doc("the function called and its arguments")] = None
    id: Annotated[str | None, doc("given to the chat template")] = None
    type: Annotated[str | None, doc("function, or custom with `custom`")] = "function"
    custom: Annotated[CustomCall | None, doc("the custom tool called and its input")] = None


class Message(msgspec.Struct):
    role: Annotated[
        str,
        doc(
            "in any order, see x-ovserve-adapted; a template without developer gets system, function is tool",
            enum=ROLES,
        ),
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
    reasoning_details: Annotated[Any, doc("the same in blocks, as OpenRouter and MiniMax have it")] = None
    thinking_blocks: Annotated[Any, doc("the same as LiteLLM has it")] = None
    refusal: Annotated[str | None, doc("text of an answer without content")] = None
    function_call: Annotated[
        FunctionCall | None, doc("the older form of tool_calls: the one call of an assistant's message")
    ] = None


def loosen_messages(body: Any) -> None:
    """Reduce parts of the assistant's messages to their type where only other servers know it."""
    messages = body.get("messages") if isinstance(body, dict) else None
    for message in messages if isinstance(messages, list) else ():
        parts = message.get("content") if isinstance(message, dict) else None
        if isinstance(parts, list) and message.get("role") == "assistant":
            message["content"] = [
                {"type": part["type"]} if is_foreign(part, (*PARTS, *ASSISTANT_PARTS)) else part
                for part in parts
            ]


def is_foreign(block: Any, types: Collection[str]) -> bool:
    """Return whether a decoded part has a type that is not among the known ones."""
    type_ = block.get("type") if isinstance(block, dict) else None
    return isinstance(type_, str) and type_ not in types


def readable(*values: Any) -> str:
    """Return the texts in decoded JSON, line by line: those of the fields that hold some for a model."""
    texts: list[str] = []
    todo = list(reversed(values))
    while todo:
        value = todo.pop()
        if isinstance(value, str):
            texts += [value] if value else []
        elif isinstance(value, list):
            todo += reversed(value)
        elif isinstance(value, dict):
            names = ("data",) if value.get("type") == "text" and "data" in value else TEXT_FIELDS
            todo += [value[name] for name in reversed(names) if name in value]
    return "\n".join(texts)


def check_messages(messages: list[Message]) -> list[str]:
    """Check what types cannot express; return the parts that are dropped. Raises InvalidArgument naming the
    message's index."""
    dropped: list[str] = []
    for i, message in enumerate(messages):
        if message.role not in ROLES:
            raise InvalidArgument.expected(f"messages[{i}].role", f"one of {', '.join(ROLES)}", message.role)
        for k, call in enumerate(message.tool_calls or ()):
            if call.function is None and call.custom is None:
                raise InvalidArgument.at(
                    f"messages[{i}].tool_calls[{k}].{'custom' if call.type == 'custom' else 'function'}",
                    "required, but missing",
                )
        own, _, foreign = _split(message)
        text_of(own, f"messages[{i}].content", Pictures())
        dropped += [f"messages[{i}].content.type={type_}" for type_ in foreign]
        blocks = {name: getattr(message, name) for name in ("reasoning_details", "thinking_blocks")}
        dropped += [f"messages[{i}].{name}" for name, it in blocks.items() if it and not readable(it)]
    return dropped


def _split(message: Message) -> tuple[str | list[Part] | None, list[str], list[str]]:
    """Return a message's content, its thoughts, and the types of parts that mean nothing to the model.

    Of the user nothing is left out: an answer that disregards a part of the question would be wrong.
    """
    content = message.content
    if message.role != "assistant" or not isinstance(content, list):
        return content, [], []
    own: list[Part] = []
    thoughts: list[str] = []
    foreign: list[str] = []
    for part in content:
        if part.type in PARTS:
            own.append(part)
        elif part.type in THOUGHT_PARTS:
            thought = readable(part.thinking, part.reasoning, part.summary, part.text)
            thoughts += [thought] if thought else []
        elif part.type == REFUSAL_PART:
            own.append(Part("text", part.refusal or part.text or ""))
        else:
            foreign.append(part.type)
    return own, thoughts, foreign


def text_of(content: str | list[Part] | None, where: str, images: Pictures) -> str:
    """Content as one string, with tags for images. Other parts are rejected by index and type."""
    if not isinstance(content, list):
        return content or ""
    pieces = []
    for i, part in enumerate(content):
        param = f"{where}[{i}]"
        if part.type in IMAGE_PARTS:
            at = f"{param}.{'content' if part.type == DATA_PART else IMAGE_PART}"
            image = data_url(part.content) if part.type == DATA_PART else part.image_url
            pieces.append((images.place(image, None, param, at, part.type), True))
        elif part.type == FILE_PART:
            pieces.append((_file(part.file or FileData(), param, images), False))
        elif part.type == AUDIO_PART:
            audio = part.input_audio or InputAudio()
            at = f"{param}.{AUDIO_PART}.data"
            pieces.append((images.place_audio(audio.data, audio.format, param, at, part.type), False))
        elif part.type == AUDIO_URL_PART:
            url = (part.audio_url or AudioUrl()).url
            at = f"{param}.{AUDIO_URL_PART}.url"
            pieces.append((images.place_audio(url, None, param, at, part.type), False))
        elif part.type not in TEXT_PARTS:
            kinds = f"one of {', '.join(PARTS)}"
            raise InvalidArgument.expected(f"{param}.type", kinds, part.type)
        elif part.text is None:
            raise InvalidArgument.at(f"{param}.text", "required, but missing")
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
    raise InvalidArgument.at(param, f"this server keeps no files, so send file_data; got {file_id!r}")


def data_url(data: str | None) -> str | None:
    """Make a data URL of base64 alone, as Azure has it; a data URL is returned as it is."""
    return data if not data or data.startswith("data:") else f"data:;base64,{data}"


def json_text(value: Any) -> str:
    """Return a text as it is, None as an empty one, and any other value as JSON."""
    return value if isinstance(value, str) else "" if value is None else msgspec.json.encode(value).decode()


def template_message(message: Message, index: int, images: Pictures) -> dict[str, Any]:
    """A message as templates expect it: content is one string, with tags for its images."""
    content, thoughts, _ = _split(message)
    text = text_of(content, f"messages[{index}].content", images)
    plain: dict[str, Any] = {"role": message.role, "content": text or message.refusal or ""}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    reasoning = message.reasoning_content or message.reasoning or "\n".join(thoughts)
    if reasoning := reasoning or readable(message.reasoning_details or message.thinking_blocks):
        plain["reasoning_content"] = reasoning
    if message.tool_calls:
        plain["tool_calls"] = [_template_call(call) for call in message.tool_calls]
    return plain


def _template_call(call: ToolCallItem) -> dict[str, Any]:
    if call.function is None:
        assert call.custom is not None, "checked before"
        function: dict[str, Any] = {"name": call.custom.name, "arguments": input_arguments(call.custom.input)}
    else:
        arguments = call.function.arguments
        function = {"name": call.function.name, "arguments": "{}" if arguments is None else arguments}
    return {"id": call.id, "type": "function", "function": function}
