"""Compile and render chat templates: functions of a template process, see `templates.py`.

A process keeps what it has compiled by the templates' keys.
"""

from __future__ import annotations

import msgspec

from ovserve.errors import InvalidArgument, LoadError
from ovserve.llm.arrangement import Expectations
from ovserve.llm.chat_template import ChatTemplate, Conversation
from ovserve.llm.template import CompiledTemplate

MAX_PROMPT = 64 * 1024 * 1024  # characters; no context is that long
MAX_TEMPLATES = 64  # kept; reloads bring new ones, and unused ones are not reported

_conversation = msgspec.json.Decoder(Conversation)
_compiled: dict[str, CompiledTemplate] = {}


def initialize() -> None:
    CompiledTemplate(ChatTemplate("x"))  # jinja2 compiles expressions of its own for its first template


def compile_template(key: str, template: ChatTemplate) -> Expectations:
    """Return what it expects of its messages. Raises LoadError in jinja's words."""
    return _compile(key, template).expects


def render(key: str, conversation: bytes, template: ChatTemplate | None = None) -> str | None:
    """Return the prompt; None if no template is given and none of this key is kept.

    The conversation is JSON. Raises InvalidArgument with the template's own message.
    """
    compiled = _compiled.get(key)
    if compiled is None:
        if template is None:
            return None
        try:
            compiled = _compile(key, template)
        except LoadError:
            raise InvalidArgument("the chat template compiled at load, but no longer does") from None
    messages = _conversation.decode(conversation)
    prompt = compiled.render(messages)
    if len(prompt) > MAX_PROMPT:
        raise InvalidArgument(
            f"the chat template made a prompt of {len(prompt)} characters from these messages; "
            f"at most {MAX_PROMPT} are allowed",
            param=messages.param,
        )
    try:
        prompt.encode()
    except UnicodeEncodeError:
        # An escape in the arguments of an earlier call, which models write too, or a literal in the template.
        # As in bodies U+FFFD replaces it: a history that has one could never be sent again.
        return prompt.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return prompt


def _compile(key: str, template: ChatTemplate) -> CompiledTemplate:
    compiled = CompiledTemplate(template)
    if len(_compiled) >= MAX_TEMPLATES:
        _compiled.clear()  # templates in use are compiled again at their next prompt
    _compiled[key] = compiled
    return compiled
