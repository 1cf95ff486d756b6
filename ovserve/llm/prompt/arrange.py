"""Rearrange a conversation for a chat template that would refuse it, or drop a part of it silently.

Many templates take one system message, at the beginning, or none; others want user and assistant to
alternate. Clients keep neither rule: coding agents send system messages in the middle, and two in a row.
`template_probe.py` detects the rules. No text is lost here, but it may move, which a header reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ovserve.llm.prompt.expectations import Expectations

SYSTEM_ROLES = ("system", "developer")
GAP = "\n\n"  # between texts that become one message

SYSTEM_MERGED = "system-merged"  # into one message, at the beginning
SYSTEM_IN_USER = "system-in-user"  # in front of the first user message
TURNS_MERGED = "turns-merged"
USER_ADDED = "user-added"  # an empty message of the user before all others

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
    if expects.merged_roles or expects.tools_before_assistant:
        merged = _turns_merged(arranged, expects)
        changes += [TURNS_MERGED] if len(merged) < len(arranged) else []
        arranged = merged
    return Arranged(arranged if changes else messages, tuple(changes))


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


def _joined(messages: Sequence[Message]) -> str:
    return GAP.join(str(message["content"]) for message in messages if message.get("content"))
