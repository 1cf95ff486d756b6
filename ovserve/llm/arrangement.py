"""The order and form of messages that a chat template takes.

A conversation is rearranged for a template that would refuse it, or drop a part of it silently. Many take one
system message, at the beginning, or none; others want user and assistant to alternate. Clients keep neither
rule: coding agents send system messages in the middle, and two in a row. `template.py` detects the rules.
Text may move, and what a template shows nowhere is lost; a header reports both.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, Literal, NamedTuple, get_args

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
