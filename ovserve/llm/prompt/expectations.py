"""Expectations of a chat template about its messages: plain data, detected by `template.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Where it shows system messages: anywhere, one at the beginning, or nowhere.
SystemPlace = Literal["any", "first", "none"]


@dataclass(frozen=True)
class Expectations:
    """The form that a template expects of its messages; `template.py` detects it."""

    tools: bool = False  # it shows tools to the model
    bare_tools: bool = False  # as functions, without the {"type": "function", "function": ...} around them
    object_arguments: bool = False  # tool call arguments as an object rather than JSON text
    reasoning_field: str = "reasoning_content"
    developer: bool = False  # it supports the role
    content_parts: bool = False  # content as a list of parts; it would drop plain text
    system: SystemPlace = "any"
    user_first: bool = False  # the first turn is the user's
    needs_user: bool = False  # at least one turn is
    merged_roles: tuple[str, ...] = ()  # of which two messages may not follow one another
    tools_before_assistant: bool = False  # after a tool's result it takes no turn of the user
