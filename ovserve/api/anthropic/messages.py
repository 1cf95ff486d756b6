"""POST messages: the request's mapping; and the prompt of messages/count_tokens, which is the same one.

The answer is `answer.py`. A conversation that ends with the assistant is continued where it ends.
Anthropic's tools and tool_choice become a policy like that of OpenAI's bodies.

The conversation becomes OpenAI's messages, which chat templates are fed with. A tool_result block becomes a
message of its own with role tool; tool_use blocks become tool_calls; thinking becomes reasoning. Of blocks
that tools at Anthropic made, the text is kept. Those without text mean nothing to another model, like
redacted thinking; they are dropped and reported. So is the line that Claude Code puts in front of its system
prompt: it differs in every request and would keep the prefix cache from ever being hit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ovserve.api.anthropic.answer import MessagesWriter, TokenCount
from ovserve.api.anthropic.body import (
    Block,
    CountRequest,
    MessagesRequest,
    PromptFields,
    SystemText,
    Tool,
    Turn,
    check_stops,
)
from ovserve.api.openai.body import decode_body, explain, show
from ovserve.api.openai.common import EFFORT_VARIABLES, effort_variables, encode, new_id, reasoning_budget
from ovserve.api.openai.logprobs import Pictures, joined, pictures_of
from ovserve.api.openai.messages import (
    FunctionCall,
    Message,
    ToolCallItem,
    is_foreign,
    json_text,
    readable,
    template_message,
)
from ovserve.api.openai.sampling import SamplingFields, to_sampling
from ovserve.api.openai.tools import ToolChoice, check_model, function_tool, tool_policy
from ovserve.errors import InvalidArgument, ThreadNotFound
from ovserve.llm.chat_template import Conversation
from ovserve.llm.model import ModelContext
from ovserve.llm.request import GenerateRequest, Presentation, ReasoningBudget, ToolPolicy, document_text

BILLING = "x-anthropic-billing-header"
ROLES = ("user", "assistant", "system")
KINDS = ("text", "image", "document", "thinking", "redacted_thinking", "tool_use", "tool_result")


def to_messages(body: PromptFields, images: Pictures) -> tuple[list[Message], list[str]]:
    """The messages, with tags for images, and names of what was dropped. Raises InvalidArgument naming the
    block."""
    dropped: list[str] = []
    messages = _system(body.system, dropped)
    for i, turn in enumerate(body.messages):
        where = f"messages[{i}]"
        if turn.role not in ROLES:
            raise InvalidArgument.expected(f"{where}.role", f"one of {', '.join(ROLES)}", turn.role)
        if turn.role == "assistant":
            messages.append(_assistant(turn, where, dropped))
        else:
            messages += _user(turn, where, images, dropped)
    return messages, dropped


def loosen_blocks(body: Any) -> None:
    """Put all fields of blocks of other kinds into `content`, which may be of any type."""
    turns = body.get("messages") if isinstance(body, dict) else None
    for turn in turns if isinstance(turns, list) else ():
        if isinstance(turn, dict) and isinstance(turn.get("content"), list):
            turn["content"] = [_loose(block) for block in turn["content"]]


def _loose(block: Any) -> Any:
    return {"type": block["type"], "content": block} if is_foreign(block, KINDS) else block


def _foreign(block: Block, dropped: list[str]) -> str:
    """Return the text of a block of another kind; one without text is dropped."""
    source = block.source if isinstance(block.source, str) else None
    text = readable(block.title, source, block.text, block.content)
    if not text:
        dropped.append(f"messages.{block.type}")
    return text


def _system(system: str | list[SystemText] | None, dropped: list[str]) -> list[Message]:
    texts = []
    for text in [system] if isinstance(system, str) else [block.text for block in system or ()]:
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
                raise InvalidArgument.at(f"{at}.input", f"expected an object, got {show(arguments)}")
            call = FunctionCall(name, json_text(arguments))
            calls.append(ToolCallItem(call, _required(block.id, f"{at}.id")))
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
        raise InvalidArgument.at(where, f"expected a string or blocks, got {show(content)}")
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
        raise InvalidArgument.at(at, f"expected an object, got {show(source)}")
    if source is not None:
        if source.type not in ("base64", "url"):
            raise InvalidArgument.expected(f"{at}.type", "base64 or url", source.type)
        field = f"{at}.data" if source.type == "base64" else f"{at}.url"
        location = source.data if source.type == "base64" else source.url
        url = f"data:;base64,{location}" if location and source.type == "base64" else location or ""
    return images.place(url or None, None, where, field, block.type)


def _document(block: Block, where: str, images: Pictures, dropped: list[str]) -> str:
    source, at = block.source, f"{where}.source"
    if source is None or isinstance(source, str):
        what = "required, but missing" if source is None else f"expected an object, got {show(source)}"
        raise InvalidArgument.at(at, what)
    about = f"{block.context}\n" if block.context else ""
    if source.type == "text":
        return about + document_text(block.title, _required(source.data, f"{at}.data"))
    if source.type == "content":
        return about + document_text(block.title, _inner(source.content, f"{at}.content", images, dropped))
    if source.type != "base64":  # a URL, which is not downloaded, or a file that is at Anthropic
        dropped.append(f"messages.document.source.type={source.type}")
        return ""
    return about + images.place_file(source.data, block.title, where, f"{at}.data", block.type)


def _text(block: Block, where: str) -> str:
    if block.type != "text":
        raise InvalidArgument.expected(f"{where}.type", "text here", block.type)
    return _required(block.text, f"{where}.text")


def _required(value: str | None, param: str) -> str:
    if value is None:
        raise InvalidArgument.at(param, "required, but missing")
    return value


CHOICES = {"auto": "auto", "any": "required", "none": "none"}

# Tools that the client runs, whose schema it does not send because Anthropic's models know it.
_TEXT = {"type": "string"}


def _file_tool(names: str, *texts: str) -> dict[str, Any]:
    properties: dict[str, Any] = {"command": {"type": "string", "enum": names.split()}}
    properties |= dict.fromkeys(("path", "file_text", "old_str", "new_str", "insert_text", *texts), _TEXT)
    line = {"type": "integer"}
    properties |= {"insert_line": line, "view_range": {"type": "array", "items": line}}
    return {"type": "object", "properties": properties, "required": ["command"]}


_EDITS = "view create str_replace insert"
CLIENT_TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "bash": (
        "Run a command in a shell that stays open. restart: begin a new shell instead.",
        {"type": "object", "properties": {"command": _TEXT, "restart": {"type": "boolean"}}},
    ),
    "text_editor": ("View and change files.", _file_tool(_EDITS)),
    "memory": (
        "Keep notes for later conversations in files below /memories.",
        _file_tool(f"{_EDITS} delete rename", "old_path", "new_path"),
    ),
}


def _client_tool(tool: Tool) -> tuple[str | None, dict[str, Any] | None] | None:
    """Return description and schema of a tool that the client runs; None for one that runs at Anthropic."""
    if tool.type in (None, "custom"):
        return tool.description, tool.input_schema
    name, _, version = tool.type.rpartition("_")
    return CLIENT_TOOLS.get(name) if version.isdigit() else None


class Tools(msgspec.Struct, frozen=True):
    policy: ToolPolicy | None
    dropped: tuple[str, ...] = ()  # types that only Anthropic can run, and what is not enforced


def openai_tools(body: PromptFields) -> Tools:
    """Raises InvalidArgument naming the index, or the choice of a tool that is not there."""
    functions: list[dict[str, Any]] = []
    dropped: list[str] = []
    hosted: list[str | None] = []  # names of the tools that only Anthropic can run
    for i, tool in enumerate(body.tools or ()):
        if (definition := _client_tool(tool)) is None:
            dropped.append(f"tools.{tool.type}")
            hosted.append(tool.name)
            continue
        name = _required(tool.name, f"tools[{i}].name")
        description, schema = definition
        if schema is None:
            raise InvalidArgument.at(f"tools[{i}].input_schema", "required, but missing")
        function = {
            "type": "function",
            "name": name,
            "description": description,
            "parameters": schema,
            "strict": tool.strict,
        }
        try:
            functions.append(function_tool(function, f"tools[{i}]"))
        except InvalidArgument as exc:  # a schema has another name here
            texts = [
                (text or "").replace(".parameters", ".input_schema") for text in (exc.message, exc.param)
            ]
            raise InvalidArgument(texts[0], param=texts[1]) from None
    choice: ToolChoice = None
    parallel = None
    if (tool_choice := body.tool_choice) is not None:
        parallel = not tool_choice.disable_parallel_tool_use
        is_hosted = tool_choice.type == "tool" and tool_choice.name in hosted
        if tool_choice.name is not None and (is_hosted or tool_choice.type != "tool"):
            dropped.append("tool_choice.name")
        if not is_hosted and (functions or not hosted):
            function = {"type": "function", "name": tool_choice.name}
            choice = function if tool_choice.type == "tool" else CHOICES[tool_choice.type]
    policy = tool_policy(functions, choice, parallel)
    return Tools(policy, (*dropped, *(policy.unenforced if policy is not None else ())))


BUDGET_FIELD = "thinking.budget_tokens"
THINKING_TYPES = ("enabled", "adaptive")  # the latter: the model decides how much, as local ones do
_decoder = msgspec.json.Decoder(MessagesRequest)
_count_decoder = msgspec.json.Decoder(CountRequest)


@dataclass(frozen=True)
class DecodedMessages:
    body: PromptFields
    messages: list[Message]
    tools: Tools
    ignored: tuple[str, ...]
    sampling: SamplingFields | None = None  # None: of count_tokens, which has none


class ToRender(msgspec.Struct, frozen=True):
    conversation: Conversation
    messages: list[dict[str, Any]]  # as the template got them
    ignored: list[str]


class _SamplingFields(SamplingFields, kw_only=True):
    """OpenAI's fields, with the format where Anthropic has it."""

    source: MessagesRequest

    @property
    def formats(self) -> list[tuple[str, dict[str, Any] | None]]:
        config = self.source.output_config
        places = (
            ("output_config.format", config.format if config is not None else None),
            ("output_format", self.source.output_format),
        )
        return [(name, None if f is None else {"type": f.type, "schema": f.schema}) for name, f in places]


class Messages:
    name = "messages"

    def decode(self, body: bytes) -> DecodedMessages:
        request, unknown = decode_body(body, _decoder, loosen_blocks)
        check_stops(request)
        decoded = _decoded(request, unknown)
        sampling = _SamplingFields(
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k or (None if request.top_k is None else -1),
            stop=request.stop_sequences,
            stream=request.stream,
            source=request,
        )
        ignored = tuple(sorted([*decoded.ignored, *sampling.answer_format.unenforced]))
        return replace(decoded, ignored=ignored, sampling=sampling)

    def to_request(self, decoded: DecodedMessages, model: ModelContext) -> GenerateRequest:
        body, sampling = decoded.body, decoded.sampling
        assert isinstance(body, MessagesRequest), "decode() made it"
        assert sampling is not None, "decode() made it"
        max_tokens = model.max_tokens(body.max_tokens, "max_tokens")
        images = pictures_of(model)
        rendered = to_render(decoded, model, images)
        budget, idle = _budget(body, model)
        return GenerateRequest(
            id=new_id("msg_"),
            prompts=(),
            conversation=rendered.conversation,
            add_special_tokens=False,  # the template writes them
            sampling=to_sampling(sampling, model, max_tokens, reasoning_budget=budget),
            presentation=Presentation(
                endpoint=self.name,
                model=body.model,
                created=int(time.time()),
                stream=bool(body.stream),
                requested_max_tokens=body.max_tokens,
                stop_sequences=tuple(body.stop_sequences or ()),
                ignored_params=tuple(sorted({*decoded.ignored, *rendered.ignored, *idle})),
            ),
            tools=decoded.tools.policy,
            image_sources=tuple(images.sources),
            file_sources=tuple(images.files),
            parts=lambda: model.parts(rendered.messages, {}, decoded.tools.policy),
        )

    def writer(self, request: GenerateRequest) -> MessagesWriter:
        return MessagesWriter(request)


def decode_count(body: bytes) -> DecodedMessages:
    """The body of count_tokens; max_tokens and the like are of no interest there."""
    decoded = _decoded(*decode_body(body, _count_decoder, loosen_blocks))
    if (thinking := decoded.body.thinking) is None or thinking.budget_tokens is None:
        return decoded
    return replace(decoded, ignored=(*decoded.ignored, BUDGET_FIELD))


def count_body(tokens: int) -> bytes:
    return encode(TokenCount(tokens))


def _decoded(body: PromptFields, unknown: dict[str, msgspec.Raw]) -> DecodedMessages:
    if body.thread is not None and body.thread.type == "continue":
        raise ThreadNotFound("thread: no conversation is held here; send all of it", param="thread")
    messages, dropped = to_messages(body, Pictures())
    dropped += ["thread"] if body.thread is not None else []
    tools = openai_tools(body)
    return DecodedMessages(body, messages, tools, tuple(sorted({*unknown, *dropped, *tools.dropped})))


def to_render(decoded: DecodedMessages, model: ModelContext, images: Pictures) -> ToRender:
    """Return the messages of the prompt; images go to `pictures`. Raises InvalidArgument."""
    if model.template is None:
        raise InvalidArgument("this model has no chat template", param="messages")
    policy = decoded.tools.policy
    unenforced = check_model(policy, model)
    kwargs, ignored = _thinking(decoded.body, model)
    effort = decoded.body.output_config.effort if decoded.body.output_config is not None else None
    kwargs, idle = effort_variables(effort, model, kwargs, "output_config.effort", EFFORT_VARIABLES)
    ignored += [*unenforced, *idle]
    messages, _ = to_messages(decoded.body, images)
    plain = [template_message(message, i, images) for i, message in enumerate(messages)]
    last = decoded.messages[-1]
    conversation = model.template.conversation(
        plain,
        kwargs,
        tools=policy.prompt_tools if policy is not None else None,
        continue_final_message=last.role == "assistant" and bool(last.content) and not last.tool_calls,
    )
    return ToRender(conversation, plain, ignored)


def _budget(body: PromptFields, model: ModelContext) -> tuple[ReasoningBudget | None, list[str]]:
    """Return the budget of the reasoning, and its field if it has no effect."""
    thinking = body.thinking
    if thinking is None or thinking.budget_tokens is None:
        return None, []
    if thinking.type != "enabled":
        return None, [BUDGET_FIELD]
    return reasoning_budget({BUDGET_FIELD: thinking.budget_tokens}, model)


def _thinking(body: PromptFields, model: ModelContext) -> tuple[dict[str, Any], list[str]]:
    """Return `thinking` as template variables, if the template reads one, and the fields without effect."""
    thinking = body.thinking
    if thinking is None or thinking.type not in (*THINKING_TYPES, "disabled"):
        return {}, [] if thinking is None else ["thinking"]
    return effort_variables(thinking.type in THINKING_TYPES, model, None, "thinking")
