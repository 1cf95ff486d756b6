"""A model's chat template in the server, and its input: plain data.

Endpoints of every API style turn a request into a Conversation; `sandbox/rendering.py` renders it in another
process, where `template.py` has jinja2. So nothing in the server is slow.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import msgspec

from ovserve.errors import InvalidArgument
from ovserve.llm.prompt import generic_tools
from ovserve.llm.prompt.arrange import arrange
from ovserve.llm.prompt.expectations import Expectations

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
        return re.search(rf"\b{re.escape(name)}\b", self.text) is not None

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
        variables = {"add_generation_prompt": add_generation_prompt and not continue_final_message} | dict(
            kwargs or {}
        )
        for name in RESERVED:
            if name in variables:
                raise InvalidArgument(
                    f"chat_template_kwargs: {name!r} is set by the server", param="chat_template_kwargs"
                )
        if not isinstance(variables["add_generation_prompt"], bool):
            raise InvalidArgument(
                f"chat_template_kwargs.add_generation_prompt: expected true or false, "
                f"got {variables['add_generation_prompt']!r}",
                param="chat_template_kwargs",
            )
        if self.tool_prompt == "generic":
            messages, tools = generic_tools.describe(messages, tools), None
        messages, adapted = arrange(messages, self.expects)
        return Conversation(messages, variables, tools or None, continue_final_message, param, adapted)
