"""Chat template rendering, as in transformers: sandboxed jinja2, compiled once per model.

It runs in a template process (`sandbox/rendering.py`), never in the server's: a template is a program.
The environment (immutable sandbox, trimmed and left-stripped blocks, loop controls, `{% generation %}`,
`raise_exception`, `strftime_now`, `tojson` without HTML escaping, `from_json`) is the one for which Hugging
Face templates are written; any other renders some of them wrongly. `template_probe.py` detects what else a
template expects of its messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import TemplateError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ovserve.errors import InvalidArgument, LoadError
from ovserve.llm.prompt.chat_template import ChatTemplate, Conversation
from ovserve.llm.prompt.expectations import Expectations
from ovserve.llm.prompt.template_probe import Messages, adapt, probe

# Exceptions of templates on unexpected messages. ArithmeticError includes OverflowError.
REFUSALS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RuntimeError,  # includes RecursionError
    AssertionError,
)


class Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks the answer for training; here its content is plain
    text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller: Callable[[], str]) -> str:
        return caller()


class CompiledTemplate:
    """One model's template, and its variant for requests with tools if it has one.

    Raises LoadError if a source does not compile.
    """

    def __init__(self, template: ChatTemplate) -> None:
        environment = _environment()
        source, tool_source = template.source, template.tool_source
        try:
            self._plain = environment.from_string(source)
            self._tools = environment.from_string(tool_source) if tool_source else self._plain
        except (TemplateError, RecursionError, MemoryError) as exc:
            at = f"line {exc.lineno}: " if isinstance(exc, TemplateSyntaxError) else ""
            raise LoadError(f"the chat template does not compile: {at}{exc or type(exc).__name__}") from exc
        self._tokens = {n: getattr(template, n) for n in ("bos_token", "eos_token", "pad_token")}
        self.expects: Expectations = probe(f"{source}{tool_source or ''}", self._try)

    def render(self, conversation: Conversation) -> str:
        """Return the prompt. Raises InvalidArgument with the template's own message."""
        messages = [adapt(message, self.expects) for message in conversation.messages]
        template, tools = self._plain, None
        if conversation.tools:
            template, tools = self._tools, conversation.tools
            if self.expects.bare_tools:
                tools = [tool.get("function", tool) for tool in tools]
        try:
            text = template.render(messages=messages, tools=tools, **self._tokens, **conversation.variables)
        except REFUSALS as exc:
            raise InvalidArgument(
                f"the chat template rejected the messages: {exc or type(exc).__name__}",
                param=conversation.param,
            ) from exc
        if not text:
            raise InvalidArgument("the chat template rendered an empty prompt", param=conversation.param)
        last = conversation.messages[-1].get("content") or ""
        return _cut_after(text, last) if conversation.continue_final_message else text

    def _try(self, messages: Messages, tools: Messages | None = None) -> str | None:
        """Return the rendered probe; None when it raises, whatever it raises."""
        try:
            return self._tools.render(
                messages=messages, tools=tools, add_generation_prompt=False, **self._tokens
            )
        except (*REFUSALS, MemoryError):
            return None


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.filters["from_json"] = json.loads
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _cut_after(text: str, content: str) -> str:
    """Return the prompt up to the end of the last message's content, as transformers cuts it."""
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
