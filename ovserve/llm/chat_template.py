"""A model's chat template in the server, and its input: plain data.

Endpoints of every API style turn a request into a Conversation; `sandbox/rendering.py` renders it in another
process, where `template.py` has jinja2. So nothing in the server is slow.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, Literal

import msgspec

from ovserve.errors import InvalidArgument
from ovserve.llm.arrangement import CALLS_IN_TEXT, Expectations, Message, arrange

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

    @cached_property
    def tool_prompt(self) -> ToolPrompt | None:
        """Return how tools of a request reach the model; None: not at all."""
        return "template" if self.expects.tools else "generic" if self.generic_tools else None

    @cached_property
    def key(self) -> str:
        """Return what identifies it in processes that keep it compiled."""
        identity = self.source, self.tool_source, self.bos_token, self.eos_token, self.pad_token
        return hashlib.sha256(repr(identity).encode()).hexdigest()

    @cached_property
    def text(self) -> str:
        """Return all of its text, for the detection of markers."""
        return f"{self.source}{self.tool_source or ''}"

    def mentions(self, name: str) -> bool:
        """Return whether the template reads a variable of this name."""
        return name in self._words

    @cached_property
    def _pythonic(self) -> bool:
        return any(mark in self.text for mark in LFM2_MARKS)

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
            results = not self.expects.shows_results
            texts = describe_tools(messages, None, results=results, pythonic=self._pythonic)
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
    if not tools:
        for message in messages:
            if message.get("tool_calls") or (results and message["role"] == "tool"):
                break
        else:
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
