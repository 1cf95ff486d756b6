"""Input items: what a conversation is made of, as clients send it and as the store keeps it.

`listed` gives items the shape and ids of OpenAI's own (for the store and input_items); `to_messages` makes a
template's messages of them. Both take client items and stored ones alike: an answer chained to stored items
must give the same prompt as the same items sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from ovserve.api.openai import messages as chat
from ovserve.api.openai.body import explain
from ovserve.api.openai.common import new_id
from ovserve.api.openai.logprobs import DETAIL, FILE, TEXT_ONLY_HERE, URL, ImageUrl, Pictures, joined
from ovserve.api.openai.operation import doc
from ovserve.api.openai.tools import input_arguments, shown_name
from ovserve.errors import InvalidArgument

ROLES = ("user", "assistant", "system", "developer")
TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
IMAGE_PART, FILE_PART = "input_image", "input_file"
# An output with others is any JSON.
OUTPUT_PARTS = (*TEXT_PARTS, "refusal", IMAGE_PART, FILE_PART, chat.AUDIO_PART)
PAST = "previous_response_id"  # the field to blame for an image of an earlier turn
ADDITIONAL_TOOLS = "additional_tools"  # where Codex has all of its tools
CALLS = {  # which field has what is asked of a tool
    "function_call": "arguments",
    "custom_tool_call": "input",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
    "tool_search_call": "arguments",
}
RESULTS = {f"{kind}_output": "output" for kind in CALLS if kind != "tool_search_call"}
RESULTS["tool_search_output"] = "tools"
NEEDED_FIELDS = {  # of items that are kept as they are
    "local_shell_call": ("action",),
    "local_shell_call_output": ("output",),
    "shell_call": ("action",),
    "shell_call_output": ("call_id", "output"),
    "apply_patch_call": ("operation",),
    "apply_patch_call_output": ("call_id", "status"),
    "tool_search_call": ("arguments",),
    "tool_search_output": ("tools",),
    ADDITIONAL_TOOLS: ("tools",),
    "mcp_list_tools": ("server_label",),
    "mcp_call": ("server_label", "name", "arguments"),
    "mcp_approval_request": ("server_label", "name", "arguments"),
    "mcp_approval_response": ("approval_request_id", "approve"),
}
KINDS = (
    "message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
    "reasoning", "item_reference", *NEEDED_FIELDS,
)  # fmt: skip
# Calls of tools that an agent has of its own, and their results.
AGENTS_OWN = {kind for kind in (*CALLS, *RESULTS) if kind in NEEDED_FIELDS}
LABELLED = ("mcp_list_tools", "mcp_call", "mcp_approval_request")


class ContentPart(msgspec.Struct, omit_defaults=True):
    type: Annotated[
        str,
        doc(
            "input_text, output_text, text, reasoning_text, summary_text, refusal, input_image, input_file, "
            "input_audio"
        ),
    ]
    text: Annotated[str | None, doc("required but in a refusal and an image")] = None
    image_url: Annotated[str | ImageUrl | None, doc(f"of an input_image: {URL}")] = None
    detail: Annotated[str | None, doc(f"of an input_image: {DETAIL}")] = None
    refusal: Annotated[str | None, doc("of a refusal")] = None
    file_data: Annotated[str | None, doc(f"of an input_file: {FILE}")] = None
    input_audio: Annotated[chat.InputAudio | None, doc("of an input_audio")] = None
    filename: Annotated[str | None, doc("of an input_file: stands before its text")] = None
    file_id: Annotated[str | None, doc("of an input_file: rejected, the server keeps no files")] = None
    file_url: Annotated[str | None, doc("of an input_file: rejected, files are not downloaded")] = None


class Item(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Every kind of item in one struct, since `type` may be missing; `check_items` knows who needs what."""

    type: Annotated[
        str | None,
        doc(
            "message, reasoning, a call or the output of one, additional_tools, or an item of an MCP server; "
            "others are dropped"
        ),
    ] = None
    id: Annotated[str | None, doc("kept")] = None
    role: Annotated[str | None, doc("of a message; one with a role needs no type")] = None
    content: Annotated[
        str | list[ContentPart] | None, doc("of a message or of reasoning: text, or parts of text")
    ] = None
    status: Annotated[str | None, doc("kept")] = None
    call_id: Annotated[str | None, doc("joins a call and its output")] = None
    name: Annotated[str | None, doc("of the function called")] = None
    namespace: Annotated[str | None, doc("of the function or custom tool called")] = None
    arguments: Annotated[str | dict[str, Any] | None, doc("of a function_call: JSON text or an object")] = (
        None
    )
    input: Annotated[str | None, doc("of a custom_tool_call: text")] = None  # of a custom tool's call
    action: Annotated[Any, doc("of a shell_call and a local_shell_call: what was to be run")] = None
    operation: Annotated[Any, doc("of an apply_patch_call: the change of a file")] = None
    output: Annotated[Any, doc("text, parts of text, or any JSON")] = None
    summary: Annotated[list[ContentPart] | None, doc("of reasoning without content")] = None
    server_label: Annotated[str | None, doc("of an MCP item")] = None
    tools: Annotated[list[dict[str, Any]] | None, doc("of additional_tools and mcp_list_tools")] = None
    error: Annotated[Any, doc("of mcp_call and mcp_list_tools")] = None
    approval_request_id: Annotated[str | None, doc("of an mcp_approval_response, and of the call")] = None
    approve: Annotated[bool | None, doc("of an mcp_approval_response")] = None
    reason: Annotated[str | None, doc("of an mcp_approval_response")] = None

    @property
    def kind(self) -> str:
        if self.type or self.role is not None:
            return self.type or "message"
        return "item_reference" if self.id and self.content is None else ""


def as_items(input_: str | list[Item] | None) -> list[Item]:
    return [Item(type="message", role="user", content=input_)] if isinstance(input_, str) else input_ or []


def check_items(items: Sequence[Item]) -> list[str]:
    """Check what types cannot express; return the items to report as dropped. Raises InvalidArgument."""
    dropped = []
    for i, item in enumerate(items):
        where, kind = f"input[{i}]", item.kind
        if kind == "message":
            if item.role not in ROLES:
                raise InvalidArgument.expected(f"{where}.role", f"one of {', '.join(ROLES)}", item.role)
            if item.content is None:
                raise InvalidArgument.at(f"{where}.content", "required, but missing")
            _text(item.content, f"{where}.content", Pictures())
        elif kind in ("function_call", "custom_tool_call"):
            _need(item, where, "name", CALLS[kind])
            if not (item.call_id or item.id):
                raise InvalidArgument.at(f"{where}.call_id", "required, but missing")
        elif kind in ("function_call_output", "custom_tool_call_output"):
            _need(item, where, "call_id")
            _output(item.output, f"{where}.output", Pictures())
        elif kind == "reasoning":
            _text(item.content, f"{where}.content", Pictures(TEXT_ONLY_HERE))
        elif kind in NEEDED_FIELDS and not _is_dropped(item):
            _need(item, where, *NEEDED_FIELDS[kind])
        elif kind == "item_reference":
            raise InvalidArgument.at(f"{where}.id", f"item {item.id!r} is not stored here")
        # Made by a tool that runs at OpenAI: nothing for this model.
        elif kind and (item.role is None or kind in NEEDED_FIELDS):
            dropped.append(f"{where}.type={kind}")
        else:
            raise InvalidArgument.expected(f"{where}.type", f"one of {', '.join(KINDS)}", item.type)
    return dropped


def additional_tools(items: Sequence[Item], past: bool = False) -> list[tuple[str, dict[str, Any]]]:
    """Return the tools that checked items give to the model, each with its place in the request."""
    return [
        (PAST if past else f"input[{i}].tools[{j}]", tool)
        for i, item in enumerate(items)
        if item.kind == ADDITIONAL_TOOLS
        for j, tool in enumerate(item.tools or ())
    ]


def listed(items: Sequence[Item]) -> list[dict[str, Any]]:
    """The items as GET input_items shows them and as the store keeps them."""
    return [_listed(item) for item in items if item.kind in KINDS and not _is_dropped(item)]


def loosen_items(body: Any) -> None:
    """Reduce items that only other servers know to their type, whatever their fields hold."""
    items = body.get("input") if isinstance(body, dict) else None
    if isinstance(items, list):
        body["input"] = [
            {"type": item["type"], "role": item.get("role")} if _is_foreign(item) else item for item in items
        ]


def _is_dropped(item: Item) -> bool:
    """Return whether it is of a form that only another server knows, so nothing for this model: an item of an
    MCP server without a label, or of an agent's tool without what it needs."""
    if item.kind in AGENTS_OWN:
        return any(getattr(item, field) is None for field in NEEDED_FIELDS[item.kind])
    return item.kind in LABELLED and item.server_label is None


def _is_foreign(item: Any) -> bool:
    """Return whether only other servers know the item, or its form."""
    if chat.is_foreign(item, KINDS):
        return True
    if not isinstance(item, dict) or item.get("type") not in (*AGENTS_OWN, *LABELLED):
        return False
    try:
        return _is_dropped(msgspec.convert(item, Item))
    except msgspec.ValidationError:
        return item["type"] in AGENTS_OWN or not isinstance(item.get("server_label"), str)


def _listed(item: Item) -> dict[str, Any]:
    status = item.status or "completed"
    if item.kind in NEEDED_FIELDS:
        fields: dict[str, Any] = msgspec.to_builtins(item)
        return fields | {"id": item.id or new_id(f"{item.kind}_")}
    if item.kind == "message":
        content: list[dict[str, Any]] = []
        parts = [ContentPart("text", item.content)] if isinstance(item.content, str) else item.content
        for part in parts or ():
            if part.type == IMAGE_PART:
                content.append(msgspec.to_builtins(part) | {"detail": part.detail or "auto"})
            elif part.type in (FILE_PART, chat.AUDIO_PART):
                content.append(msgspec.to_builtins(part))
            elif part.type == "refusal":
                content.append({"type": "refusal", "refusal": part.refusal or ""})
            elif item.role == "assistant":
                content.append({"type": "output_text", "text": part.text, "annotations": [], "logprobs": []})
            else:
                content.append({"type": "input_text", "text": part.text})
        id_ = item.id or new_id("msg_")
        return {"id": id_, "type": "message", "role": item.role, "status": status, "content": content}
    if item.kind == "reasoning":
        summary = [{"type": "summary_text", "text": p.text or ""} for p in item.summary or ()]
        plain: dict[str, Any] = {"id": item.id or new_id("rs_"), "type": "reasoning", "summary": summary}
        if isinstance(item.content, list):
            plain["content"] = [{"type": "reasoning_text", "text": p.text or ""} for p in item.content]
        return plain
    plain = {"type": item.kind, "status": status}
    if item.kind.endswith("_output"):
        output = item.output
        if not _is_parts(output) and not isinstance(output, str):
            output = _output(output, "output", Pictures())
        return plain | {"id": item.id or new_id("fco_"), "call_id": item.call_id, "output": output}
    field, call_id = CALLS[item.kind], item.call_id or item.id
    value = chat.json_text(getattr(item, field))
    plain |= {"id": item.id or new_id("fc_"), "call_id": call_id, "name": item.name, field: value}
    return plain | ({"namespace": item.namespace} if item.namespace else {})


class _Turn:
    """An assistant's turn under way: reasoning, text and calls that stand together are one message."""

    def __init__(self) -> None:
        self.reasoning: list[str] = []
        self.content: str | None = None
        self.calls: list[chat.ToolCallItem] = []

    @property
    def empty(self) -> bool:
        return not self.reasoning and self.content is None and not self.calls

    def message(self) -> chat.Message:
        return chat.Message(
            "assistant",
            self.content or "",
            tool_calls=self.calls or None,
            reasoning_content="\n".join(self.reasoning) or None,
        )


def to_messages(
    items: Sequence[Item], instructions: str | None, images: Pictures, past: int = 0
) -> list[dict[str, Any]]:
    """Checked items as the messages of a chat template. The first `past` of them are not input of this
    request."""
    messages = [] if instructions is None else [chat.Message("system", instructions)]
    turn = _Turn()
    requests: dict[str, Item] = {}  # for approval, by id

    def flush() -> None:
        nonlocal turn
        if not turn.empty:
            messages.append(turn.message())
            turn = _Turn()

    for i, item in enumerate(items):
        kind = "" if _is_dropped(item) else item.kind
        where = PAST if i < past else f"input[{i - past}]"
        if kind == "reasoning":
            if turn.content is not None or turn.calls:
                flush()
            text = _text(item.content, where, images) or _text(item.summary, where, images)
            turn.reasoning += [text] if text else []
        elif kind == "message" and item.role == "assistant":
            if turn.content is not None:
                flush()
            turn.content = _text(item.content, f"{where}.content", images)
        elif kind in CALLS:
            turn.calls.append(_call(item))
        elif (called := _mcp_call(item, requests)) is not None:
            turn.calls.append(called)
            flush()
            messages.append(chat.Message("tool", _mcp_output(item), tool_call_id=called.id))
        elif kind in RESULTS:
            flush()
            messages.append(_result(item, where, images))
        elif kind == "message":
            flush()
            messages.append(chat.Message(item.role or "", _text(item.content, f"{where}.content", images)))
    flush()
    return [chat.template_message(m, i, images) for i, m in enumerate(messages)]


def _call(item: Item) -> chat.ToolCallItem:
    """Return a call of a function, of a custom tool, or of a tool that is known by the item's kind."""
    name, arguments = (
        shown_name(item.namespace, item.name or ""),
        chat.json_text(getattr(item, CALLS[item.kind])),
    )
    if item.kind == "custom_tool_call":
        arguments = input_arguments(item.input)
    elif item.kind in NEEDED_FIELDS:
        name = item.kind.removesuffix("_call")
    return chat.ToolCallItem(chat.FunctionCall(name, arguments or "{}"), item.call_id or item.id)


def _result(item: Item, where: str, images: Pictures) -> chat.Message:
    text = _output(getattr(item, RESULTS[item.kind]), f"{where}.{RESULTS[item.kind]}", images)
    if item.kind == "apply_patch_call_output" and (item.status == "failed" or not text):
        text = ": ".join(part for part in (item.status, text) if part)
    answered = item.call_id or (item.id if item.kind == "local_shell_call_output" else None)
    return chat.Message("tool", text, tool_call_id=answered)


def _mcp_call(item: Item, requests: dict[str, Item]) -> chat.ToolCallItem | None:
    """Return the call that an item says has been run, or not been approved of; keep requests for approval."""
    called: Item | None = None
    if item.kind == "mcp_approval_request":
        requests[item.id or ""] = item
    elif item.kind == "mcp_call":
        called = item
    elif item.kind == "mcp_approval_response" and item.approve is False:
        called = requests.get(item.approval_request_id or "")
    if called is None or called.server_label is None:
        return None
    return chat.ToolCallItem(
        chat.FunctionCall(called.name or "", chat.json_text(called.arguments) or "{}"), called.id
    )


def _mcp_output(item: Item) -> str:
    """Return what the model reads of a call that has been run, or that the user has not approved of."""
    if item.kind == "mcp_approval_response":
        return "error: the user did not approve of this call" + (f": {item.reason}" if item.reason else "")
    if isinstance(item.output, str):
        return item.output
    content = item.error.get("content") if isinstance(item.error, dict) else None
    texts = (
        [part.get("text") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    )
    return "\n".join(text for text in texts if isinstance(text, str)) or f"error: {item.error or 'no result'}"


def _text(content: str | list[ContentPart] | None, where: str, images: Pictures) -> str:
    """Content as one string, with tags for images. Other parts are rejected by index and type."""
    if not isinstance(content, list):
        return content or ""
    pieces = []
    for i, part in enumerate(content):
        param = PAST if where.startswith(PAST) else f"{where}[{i}]"
        field = "refusal" if part.type == "refusal" else "text"
        if part.type == IMAGE_PART:
            at = PAST if param == PAST else f"{param}.image_url"
            pieces.append((images.place(part.image_url, part.detail, param, at, part.type), True))
        elif part.type == FILE_PART:
            pieces.append((_file(part, param, images), False))
        elif part.type == chat.AUDIO_PART:
            audio = part.input_audio or chat.InputAudio()
            at = PAST if param == PAST else f"{param}.{part.type}.data"
            pieces.append((images.place_audio(audio.data, audio.format, param, at, part.type), False))
        elif part.type not in ("refusal", *TEXT_PARTS):
            kinds = f"{', '.join(TEXT_PARTS)}, refusal, {IMAGE_PART}, {FILE_PART} or {chat.AUDIO_PART}"
            raise InvalidArgument.expected(f"{param}.type", kinds, part.type)
        elif (value := getattr(part, field)) is None:
            raise InvalidArgument.at(f"{param}.{field}", "required, but missing")
        else:
            pieces.append((value, False))
    return joined(pieces)


def _file(part: ContentPart, where: str, images: Pictures) -> str:
    if part.file_id is not None:
        chat.refuse_file_id(part.file_id, f"{where}.file_id")
    if part.file_url is not None:
        raise InvalidArgument.at(
            f"{where}.file_url", "this server does not download files, so send file_data"
        )
    at = PAST if where == PAST else f"{where}.file_data"
    return images.place_file(part.file_data, part.filename, where, at, FILE_PART)


def _is_parts(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(p, dict) and p.get("type") in OUTPUT_PARTS for p in value)
    )


def _output(value: Any, where: str, images: Pictures) -> str:
    """Return the output of a tool as text: a string, text parts, or any other JSON as it is written."""
    if _is_parts(value):
        try:
            parts = msgspec.convert(value, list[ContentPart])
        except msgspec.ValidationError as exc:
            fault = explain(str(exc), msgspec.json.encode(value), list[ContentPart])
            raise InvalidArgument(f"{where}{fault}", param=f"{where}{fault.param}") from None
        return _text(parts, where, images)
    return chat.json_text(value)


def _need(item: Item, where: str, *names: str) -> None:
    for name in names:
        if getattr(item, name) is None or (name == "name" and not item.name):
            raise InvalidArgument.at(f"{where}.{name}", "required, but missing")
