"""A model's chat template in the server, and its input: plain data.

Endpoints of every API style turn a request into a Conversation; `sandbox/rendering.py` renders it in another
process, where `template.py` has jinja2. So nothing in the server is slow.

A conversation is rearranged for a template that would refuse it, or drop a part of it silently. Many take one
system message, at the beginning, or none; others want user and assistant to alternate. Clients keep neither
rule: coding agents send system messages in the middle, and two in a row. `template.py` detects the rules. No
text is lost here, but it may move, which a header reports.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count, groupby
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from ovserve.errors import InvalidArgument

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS = get_args(Effort)

# Where it shows system messages: anywhere, one at the beginning, or nowhere.
SystemPlace = Literal["any", "first", "none"]


@dataclass(frozen=True)
class Expectations:
    """The form that a template expects of its messages; `template.py` detects it."""

    tools: bool = False  # it shows tools to the model
    bare_tools: bool = False  # as functions, without the {"type": "function", "function": ...} around them
    whole_tools: bool = False  # it refuses tools without a description or parameters
    shows_calls: bool = True  # of the history
    shows_results: bool = True  # of these calls
    object_arguments: bool = False  # tool call arguments as an object rather than JSON text
    only_objects: bool = False  # it refuses or drops all others, such as broken JSON
    nine_ids: bool = False  # calls need ids of nine letters and digits
    null_content: bool = False  # it shows calls only of messages without content
    text_apart: bool = False  # of a message with text and calls it drops one
    text_lost: Literal["", "answered", "always"] = ""  # it drops that text, or does before a later answer
    thoughts_lost: bool = False  # it shows none, not even those before the last calls
    names_lost: bool = False  # it shows no name of a user
    text_or_thoughts: bool = False  # it refuses both in a message with calls
    system_beside_user: bool = False  # it shows the system message only if the last message is the user's
    named_results: bool = False  # it refuses a result without a name whose call is not in the message before
    one_call: bool = False  # of a message; it refuses or drops others
    reasoning_field: str = "reasoning_content"
    developer: bool = False  # it supports the role
    content_parts: bool = False  # content as a list of parts; it would drop plain text
    system: SystemPlace = "any"
    user_first: bool = False  # the first turn is the user's
    needs_user: bool = False  # at least one turn is
    empty_answers: bool = True  # it takes messages of the assistant without text and calls
    merged_roles: tuple[str, ...] = ()  # of which two messages may not follow one another
    tools_before_assistant: bool = False  # after a tool's result it takes no turn of the user
    efforts: tuple[str, ...] = ()  # of reasoning that it knows, if it writes any that is given


SYSTEM_ROLES = ("system", "developer")
GAP = "\n\n"  # between texts that become one message

SYSTEM_MERGED = "system-merged"  # into one message, at the beginning
SYSTEM_IN_USER = "system-in-user"  # in front of the first user message
TURNS_MERGED = "turns-merged"
CALLS_IN_TEXT = "calls-in-text"  # calls of the history and their results
CALLS_APART = "calls-apart"  # a message for each call, or for the text before calls
CALL_IDS = "call-ids"  # others for calls and their results
USER_ADDED = "user-added"  # an empty message of the user before all others
TEXT_IN_THOUGHTS = "text-in-thoughts"  # the text before calls
TEXT_LOST = "text-lost"  # text before calls that the template shows nowhere
THOUGHTS_LOST = "thoughts-lost"  # thoughts since the last turn of the user, likewise
NAMES_LOST = "names-lost"  # of users

Message = Mapping[str, Any]


class Arranged(NamedTuple):
    messages: Sequence[Message]
    changes: tuple[str, ...]  # what was done; none: the messages are the client's


def arrange(messages: Sequence[Message], expects: Expectations) -> Arranged:
    """Return the messages as the template takes them, in linear time; the originals are unchanged."""
    arranged, changes = _systems_placed(messages, expects)
    if expects.user_first or expects.needs_user:
        arranged, added = _with_user(arranged, expects)
        changes += added
    merges = expects.merged_roles or expects.tools_before_assistant or not expects.empty_answers
    for applies, change, step in (
        (merges, TURNS_MERGED, _turns_merged),
        (expects.text_apart or expects.one_call, CALLS_APART, _calls_apart),
        (expects.nine_ids, CALL_IDS, _with_ids),
        (expects.text_or_thoughts, TEXT_IN_THOUGHTS, _in_thoughts),
        (expects.system_beside_user, SYSTEM_IN_USER, _beside_user),
        (expects.named_results, "", _with_names),
    ):
        before, arranged = arranged, step(arranged, expects) if applies else arranged
        changes += [change] if arranged != before else []
    changes += _losses(arranged, expects)
    return Arranged(arranged if changes else messages, tuple(filter(None, changes)))


def _losses(messages: Sequence[Message], expects: Expectations) -> list[str]:
    """Return what of the messages the template shows nowhere."""
    losses: dict[str, None] = {}
    answered, this_turn = expects.text_lost == "always", True
    for message in reversed(messages):
        if message["role"] == "user":
            this_turn = False
            if expects.names_lost and message.get("name"):
                losses[NAMES_LOST] = None
        elif message["role"] == "assistant":
            if this_turn and expects.thoughts_lost and message.get("reasoning_content"):
                losses[THOUGHTS_LOST] = None
            if not message.get("tool_calls"):
                answered = True
            elif expects.text_lost and answered and message.get("content"):
                losses[TEXT_LOST] = None
    return [*losses]


def _in_thoughts(messages: list[Message], expects: Expectations) -> list[Message]:
    """Return the messages with the text before calls as the end of the thoughts, if there are some."""
    arranged: list[Message] = []
    for message in messages:
        if message.get("tool_calls") and message.get("reasoning_content") and message.get("content"):
            thoughts = f"{message['reasoning_content']}{GAP}{message['content']}"
            message = {**message, "content": "", "reasoning_content": thoughts}
        arranged.append(message)
    return arranged


def _beside_user(messages: list[Message], expects: Expectations) -> list[Message]:
    """Return the messages with the system message at the beginning of the last turn of the user."""
    places = [i for i, message in enumerate(messages) if message["role"] == "user"]
    if not places or messages[0]["role"] not in SYSTEM_ROLES or places[-1] == len(messages) - 1:
        return messages
    last = messages[places[-1]]
    beside = {**last, "content": _joined([messages[0], last])}
    return [*messages[1 : places[-1]], beside, *messages[places[-1] + 1 :]]


def _with_names(messages: list[Message], expects: Expectations) -> list[Message]:
    """Return the messages with the names of the functions at their results."""
    names: dict[Any, str] = {}
    arranged: list[Message] = []
    for message in messages:
        names |= {call.get("id"): call["function"]["name"] for call in message.get("tool_calls") or ()}
        if message["role"] == "tool" and not message.get("name"):
            last = next(reversed(names.values()), "unknown")
            message = {**message, "name": names.get(message.get("tool_call_id"), last)}
        arranged.append(message)
    return arranged


def _systems_placed(messages: Sequence[Message], expects: Expectations) -> tuple[list[Message], list[str]]:
    arranged = list(messages)
    systems = [message for message in arranged if message["role"] in SYSTEM_ROLES]
    if expects.system == "any" or not systems:
        return arranged, []
    if expects.system == "first" and len(systems) == 1 and arranged[0] is systems[0]:
        return arranged, []
    others = [message for message in arranged if message["role"] not in SYSTEM_ROLES]
    text = _joined(systems)
    if expects.system == "first":
        return [{**systems[0], "content": text}, *others], [SYSTEM_MERGED]
    if others and others[0]["role"] == "user":
        first = others[0]
        return [{**first, "content": _joined([{"content": text}, first])}, *others[1:]], [SYSTEM_IN_USER]
    return [{"role": "user", "content": text}, *others], [SYSTEM_IN_USER]


def _with_user(messages: list[Message], expects: Expectations) -> tuple[list[Message], list[str]]:
    """Return the messages with a user turn where the template requires one. A system message that stands
    alone becomes it."""
    users = any(message["role"] == "user" for message in messages)
    begins = 1 if messages and messages[0]["role"] in SYSTEM_ROLES else 0
    if not users and begins and expects.needs_user:
        return [{**messages[0], "role": "user"}, *messages[1:]], [SYSTEM_IN_USER]
    late = expects.user_first and len(messages) > begins and messages[begins]["role"] == "assistant"
    if (not users and expects.needs_user) or late:
        return [*messages[:begins], {"role": "user", "content": ""}, *messages[begins:]], [USER_ADDED]
    return messages, []


def _turns_merged(messages: list[Message], expects: Expectations) -> list[Message]:
    groups: list[list[Message]] = []
    for message in messages:
        calls, role = message.get("tool_calls"), message["role"]
        if role == "assistant" and not (expects.empty_answers or calls or message.get("content")):
            continue
        if role == "user" and expects.tools_before_assistant and groups:
            # Calls that the client gave up have no results, and only a result may stand behind a call.
            lost = groups[-1][-1].get("tool_calls") or ()
            groups += [[{"role": "tool", "content": "", "tool_call_id": call.get("id")}] for call in lost]
        if groups and _continues(groups[-1], message, expects):
            groups[-1].append(message)
        else:
            groups.append([message])
    return [group[0] if len(group) == 1 else _one(group) for group in groups]


def _continues(group: list[Message], message: Message, expects: Expectations) -> bool:
    last, role = group[-1], message["role"]
    if role == "user" and group[0]["role"] == "tool":
        return expects.tools_before_assistant
    if role != last["role"] or role not in expects.merged_roles:
        return False
    # The text of a turn stands before its calls, so text after a call cannot join it.
    return not last.get("tool_calls") or bool(message.get("tool_calls") and not message.get("content"))


def _one(group: list[Message]) -> Message:
    """Return the message that all of a group make: texts in their order, calls after them."""
    merged = {**group[0], "content": _joined(group)}
    if thoughts := [message["reasoning_content"] for message in group if message.get("reasoning_content")]:
        merged["reasoning_content"] = "\n".join(thoughts)
    if calls := [call for message in group for call in message.get("tool_calls") or ()]:
        merged["tool_calls"] = calls
    return merged


def _calls_apart(messages: list[Message], expects: Expectations) -> list[Message]:
    """Return the messages with text, or calls, in messages of their own; the results of each follow it."""
    groups: list[list[Message]] = []
    for message in messages:
        if message["role"] == "tool" and groups:
            groups[-1].append(message)
        else:
            groups.append([message])
    return [one for message, *results in groups for one in _apart(message, results, expects)]


def _apart(message: Message, results: list[Message], expects: Expectations) -> Iterable[Message]:
    calls = message.get("tool_calls") or []
    bare = {"role": message["role"], "content": ""}
    if calls and expects.text_apart and message.get("content"):
        yield {**message, "tool_calls": None}
        message = {**bare, "tool_calls": calls}
    parts: list[list[Message]] = [[message]]
    if expects.one_call and calls:
        parts = [[{**(bare if k else message), "tool_calls": [call]}] for k, call in enumerate(calls)]
    by_id = {call.get("id"): part for call, part in zip(calls, parts, strict=False) if call.get("id")}
    waiting = (part for part in parts if len(part) == 1)
    for result in results:
        (by_id.get(result.get("tool_call_id")) or next(waiting, parts[-1])).append(result)
    yield from chain.from_iterable(parts)


def call_ids(client: Set[Any]) -> Iterator[str]:
    """Yield ids of nine characters, which some templates ask for, other than those of the client."""
    return (new for number in count(1) if (new := f"call{number:05d}") not in client)


def _with_ids(messages: list[Message], expects: Expectations) -> list[Message]:
    """Return the messages with other ids of calls in place of those that the template refuses."""
    free = call_ids({call.get("id") for message in messages for call in message.get("tool_calls") or ()})
    new: dict[Any, str] = {}
    waiting: deque[str] = deque()

    def fitting(id_: str | None) -> str:
        return id_ if id_ and re.fullmatch("[A-Za-z0-9]{9}", id_) else next(free)

    messages_with_ids: list[Message] = []
    for message in messages:
        if calls := message.get("tool_calls"):
            others = [{**call, "id": fitting(call.get("id"))} for call in calls]
            new |= {call.get("id"): other["id"] for call, other in zip(calls, others, strict=True)}
            waiting += [call["id"] for call in others]
            message = {**message, "tool_calls": others}
        elif message["role"] == "tool":
            id_ = message.get("tool_call_id")
            first = waiting.popleft() if waiting else None
            message = {**message, "tool_call_id": (id_ and new.get(id_)) or first or fitting(id_)}
        messages_with_ids.append(message)
    return messages_with_ids


def _joined(messages: Sequence[Message]) -> str:
    return GAP.join(str(message["content"]) for message in messages if message.get("content"))


ToolPrompt = Literal["template", "generic"]

RESERVED = ("messages", "tools", "bos_token", "eos_token", "pad_token")


class Conversation(msgspec.Struct, frozen=True):
    """The input of a prompt, besides the template. It crosses a process border as JSON."""

    messages: Sequence[Mapping[str, Any]]
    variables: Mapping[str, Any]  # chat_template_kwargs; add_generation_prompt among them
    tools: Sequence[Mapping[str, Any]] | None = None
    continue_final_message: bool = False  # the prompt ends inside the last message
    param: str = "messages"  # the API style's name of the field, for errors
    adapted: tuple[str, ...] = ()  # what `arrange` changed, reported in a header

    @property
    def prefill(self) -> str:
        """Return the beginning of the answer that the client wrote, if any."""
        content = self.messages[-1].get("content") if self.continue_final_message else ""
        return content if isinstance(content, str) else ""


class EncodedConversation(msgspec.Struct, frozen=True):
    """A Conversation already encoded as JSON. The event loop only forwards it."""

    json: bytes
    param: str
    adapted: tuple[str, ...] = ()
    prefill: str = ""

    @classmethod
    def of(cls, conversation: Conversation) -> EncodedConversation:
        """Encode it. Raises UnicodeEncodeError or RecursionError for values that JSON cannot hold."""
        encoded = msgspec.json.encode(conversation)
        return cls(encoded, conversation.param, conversation.adapted, conversation.prefill)


@dataclass(frozen=True)
class ChatTemplate:
    """A template. `expects` is not part of its identity: the same sources always expect the same."""

    source: str
    tool_source: str | None = None  # the variant for requests with tools
    bos_token: str = ""
    eos_token: str = ""
    pad_token: str = ""
    generic_tools: bool = False  # the graph requests a generic tool prompt if the template has no tools
    expects: Expectations = field(default=Expectations(), compare=False)

    @property
    def tool_prompt(self) -> ToolPrompt | None:
        """Return how tools of a request reach the model; None: not at all."""
        return "template" if self.expects.tools else "generic" if self.generic_tools else None

    @cached_property
    def key(self) -> str:
        """Return what identifies it in processes that keep it compiled."""
        identity = self.source, self.tool_source, self.bos_token, self.eos_token, self.pad_token
        return hashlib.sha256(repr(identity).encode()).hexdigest()

    @property
    def text(self) -> str:
        """Return all of its text, for the detection of markers."""
        return f"{self.source}{self.tool_source or ''}"

    def mentions(self, name: str) -> bool:
        """Return whether the template reads a variable of this name."""
        return name in self._words

    @cached_property
    def _words(self) -> frozenset[str]:
        return frozenset(re.findall(r"\w+", self.text))

    def conversation(
        self,
        messages: Sequence[Mapping[str, Any]],
        kwargs: Mapping[str, Any] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        param: str = "messages",
    ) -> Conversation:
        """Build the template's input. `kwargs` are the request's chat_template_kwargs.

        Raises InvalidArgument for a variable that is the server's, for an add_generation_prompt among the
        kwargs that is not a boolean, and for tools that would not reach the model.
        """
        if tools and self.tool_prompt is None:
            raise InvalidArgument(
                f"tools: this model's chat template has no place for tools, and {len(tools)} are given; the "
                f"graph's option generic_tool_prompt puts them into the system message",
                param="tools",
            )
        adds = add_generation_prompt and not continue_final_message
        variables = {"add_generation_prompt": adds} | dict(kwargs or {})
        for name in RESERVED:
            if name in variables:
                raise InvalidArgument.at("chat_template_kwargs", f"{name!r} is set by the server")
        if not isinstance(variables["add_generation_prompt"], bool):
            raise InvalidArgument(
                f"chat_template_kwargs.add_generation_prompt: expected true or false, "
                f"got {variables['add_generation_prompt']!r}",
                param="chat_template_kwargs",
            )
        if self.tool_prompt == "generic":
            messages, tools = describe_tools(messages, tools), None
        texts = messages
        if not self.expects.shows_calls:
            own = any(mark in self.text for mark in LFM2_MARKS)
            texts = describe_tools(messages, None, results=not self.expects.shows_results, pythonic=own)
        changes = () if texts is messages else (CALLS_IN_TEXT,)
        messages, adapted = arrange(texts, self.expects)
        return Conversation(
            messages, variables, tools or None, continue_final_message, param, changes + adapted
        )


# Tools for a model whose chat template does not support them: described in the system message, as text.
#
# The graph's option `generic_tool_prompt` enables it. The form is that of Hermes, which most models have seen
# and which the tool parser `hermes3` reads: calls between <tool_call> and </tool_call>, results between
# <tool_response> and </tool_response> in a user turn.


GENERIC_PARSER = "hermes3"  # the tool parser for the requested format
LFM2_MARKS = ("<|tool_list_start|>", "keep_past_thinking")  # of LFM2's templates, which show no calls either

_HEAD = """\
# Tools

You may call functions to help with the request. Each line between <tools> and </tools> is a function in JSON:
<tools>
"""
_TAIL = """
</tools>

To call a function, answer with a JSON object of its name and its arguments between <tool_call> and \
</tool_call>, once for each call:
<tool_call>
{"name": "the function's name", "arguments": {"the parameter's name": "its value"}}
</tool_call>"""


def describe_tools(
    messages: Sequence[Message], tools: Sequence[Message] | None, results: bool = True, pythonic: bool = False
) -> Sequence[Message]:
    """Return the messages with the tools in them, and with calls of the history as text, as are their
    `results`. `pythonic`: calls are written as LFM2 does."""
    if not tools and not any(m.get("tool_calls") or (results and m["role"] == "tool") for m in messages):
        return messages
    described: list[dict[str, Any]] = []
    for answers, group in groupby(messages, lambda message: results and message["role"] == "tool"):
        if answers:
            _add_results(described, [str(message.get("content") or "") for message in group])
        else:
            described += [_with_calls(message, pythonic=pythonic) for message in group]
    return _with_tools(described, tools) if tools else described


def _with_tools(messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    lines = (json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = _HEAD + "\n".join(lines) + _TAIL
    if messages and messages[0]["role"] in ("system", "developer"):
        first = messages[0]
        return [first | {"content": f"{first.get('content') or ''}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _with_calls(message: Mapping[str, Any], *, pythonic: bool) -> dict[str, Any]:
    plain = dict(message)
    calls = [call["function"] for call in plain.pop("tool_calls", None) or []]
    texts = [str(plain.get("content") or ""), _python_calls(calls) if pythonic else _hermes_calls(calls)]
    return plain | {"content": "\n".join(text for text in texts if text)} if calls else plain


def _hermes_calls(calls: Sequence[Mapping[str, Any]]) -> str:
    texts = []
    for call in calls:
        arguments = call.get("arguments")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
        name = json.dumps(call["name"], ensure_ascii=False)
        texts.append(f'<tool_call>\n{{"name": {name}, "arguments": {text or "{}"}}}\n</tool_call>')
    return "\n".join(texts)


def _python_calls(calls: Sequence[Mapping[str, Any]]) -> str:
    """Return calls as LFM2 writes them, or as Hermes where arguments have no such form."""
    texts = []
    for call in calls:
        arguments = call.get("arguments") or "{}"
        try:
            values = json.loads(arguments) if isinstance(arguments, str) else arguments
        except ValueError:
            return _hermes_calls(calls)
        if not isinstance(values, dict) or not all(map(str.isidentifier, values)):
            return _hermes_calls(calls)
        quoted = {
            k: json.dumps(v, ensure_ascii=False) if isinstance(v, str) else repr(v) for k, v in values.items()
        }
        texts.append(f"{call['name']}({', '.join(f'{name}={value}' for name, value in quoted.items())})")
    return f"<|tool_call_start|>[{', '.join(texts)}]<|tool_call_end|>"


def _add_results(messages: list[dict[str, Any]], texts: list[str]) -> None:
    """Add the results of one turn's calls as one user turn: some templates require alternating turns."""
    results = "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in texts)
    last = messages[-1] if messages else {}
    if last.get("role") == "user" and str(last.get("content", "")).endswith("</tool_response>"):
        last["content"] += "\n" + results
    else:
        messages.append({"role": "user", "content": results})
