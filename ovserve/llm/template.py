"""Chat template rendering, as transformers does it: sandboxed jinja2, compiled once per model.

Called by the request parser for every chat request. The environment (immutable sandbox, trimmed and
left-stripped blocks, loop controls, `{% generation %}`, `raise_exception`, `strftime_now`, `tojson` without
HTML escaping) is the one Hugging Face templates are written for; anything else renders some of them wrongly.
What a template expects of its messages beyond that is found by `template_probe.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ovserve.errors import InvalidArgument, LoadError
from ovserve.llm.template_probe import Expectations, adapt, probe

RESERVED = ("messages", "tools", "bos_token", "eos_token", "pad_token")
Messages = Sequence[Mapping[str, Any]]


class Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks the answer for training; here it is text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller: Callable[[], str]) -> str:
        return caller()


class ChatTemplate:
    """One model's template, and its variant for requests with tools if it has one.

    Raises LoadError if a source does not compile.
    """

    def __init__(
        self,
        source: str,
        tool_source: str | None = None,
        *,
        bos_token: str = "",
        eos_token: str = "",
        pad_token: str = "",
    ) -> None:
        self.source = source
        environment = _environment()
        try:
            self._plain = environment.from_string(source)
            self._tools = environment.from_string(tool_source) if tool_source else self._plain
        except TemplateError as exc:
            raise LoadError(f"the chat template does not compile: {exc}") from exc
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token, "pad_token": pad_token}
        self.expects: Expectations = probe(f"{source}{tool_source or ''}", self._try)

    def mentions(self, name: str) -> bool:
        """Does the template read a variable of this name?"""
        return re.search(rf"\b{re.escape(name)}\b", self.source) is not None

    def render(
        self,
        messages: Messages,
        kwargs: Mapping[str, Any] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """The prompt for `messages`; with `continue_final_message` it ends inside the last of them.

        `kwargs` are chat_template_kwargs, which may also set add_generation_prompt. Raises InvalidArgument
        with the template's own words.
        """
        variables = {"add_generation_prompt": add_generation_prompt and not continue_final_message} | dict(
            kwargs or {}
        )
        for name in variables:
            if name in RESERVED:
                raise InvalidArgument(
                    f"chat_template_kwargs: {name!r} is set by the server", param="chat_template_kwargs"
                )
        if not isinstance(variables["add_generation_prompt"], bool):
            raise InvalidArgument(
                f"chat_template_kwargs.add_generation_prompt: expected true or false, "
                f"got {variables['add_generation_prompt']!r}",
                param="chat_template_kwargs",
            )
        messages = [adapt(message, self.expects) for message in messages]
        template = self._tools if tools else self._plain
        try:
            text = template.render(messages=messages, tools=tools or None, **self._tokens, **variables)
        except (
            TemplateError, TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError
        ) as exc:  # fmt: skip
            raise InvalidArgument(f"the chat template refused the messages: {exc}", param="messages") from exc
        if not text:
            raise InvalidArgument("the chat template made an empty prompt of the messages", param="messages")
        return _cut_after(text, messages[-1]["content"]) if continue_final_message else text

    def _try(self, messages: Messages) -> str | None:
        """What the template makes of a probe; None when it raises, whatever it raises."""
        try:
            return self._tools.render(
                messages=messages, tools=None, add_generation_prompt=False, **self._tokens
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError, ArithmeticError):
            return None


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _cut_after(text: str, content: str) -> str:
    """The prompt up to the end of the last message's content, as transformers cuts it."""
    at = text.rfind(content.strip())
    if at < 0 or not content.strip():
        raise InvalidArgument(
            "continue_final_message: the last message is empty, or the chat template changed it",
            param="continue_final_message",
        )
    whole = text[at:].startswith(content)
    return text[: at + len(content if whole else content.strip())]


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format_: str) -> str:
    return datetime.now().strftime(format_)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes <, > and & for HTML, which models have never seen.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
