"""Chat template rendering, as transformers does it: sandboxed jinja2, compiled once per model.

Called by the request parser for every chat request. The environment (immutable sandbox, trimmed and
left-stripped blocks, loop controls, `raise_exception`, `strftime_now`, `tojson` without HTML escaping) is the
one Hugging Face templates are written for; anything else renders some of them wrongly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ovserve.errors import InvalidArgument, LoadError

RESERVED = ("messages", "tools", "bos_token", "eos_token", "pad_token", "add_generation_prompt")


class ChatTemplate:
    """One model's template. Raises LoadError if the source does not compile."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "", pad_token: str = "") -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except TemplateError as exc:
            raise LoadError(f"the chat template does not compile: {exc}") from exc
        self.source = source
        self._has_developer = self.mentions("developer")
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token, "pad_token": pad_token}

    def mentions(self, name: str) -> bool:
        """Does the template read a variable of this name?"""
        return re.search(rf"\b{re.escape(name)}\b", self.source) is not None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        kwargs: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """The prompt for `messages`; with `continue_final_message` it ends inside the last of them.

        `kwargs` are chat_template_kwargs. Raises InvalidArgument with the template's own words.
        """
        for name in kwargs or ():
            if name in RESERVED:
                raise InvalidArgument(
                    f"chat_template_kwargs: {name!r} is set by the server", param="chat_template_kwargs"
                )
        if not self._has_developer:
            messages = [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]
        try:
            text = self._template.render(
                messages=messages,
                tools=None,
                add_generation_prompt=add_generation_prompt,
                **self._tokens,
                **(kwargs or {}),
            )
        except (
            TemplateError, TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError
        ) as exc:  # fmt: skip
            raise InvalidArgument(f"the chat template refused the messages: {exc}", param="messages") from exc
        if not text:
            raise InvalidArgument("the chat template made an empty prompt of the messages", param="messages")
        return _cut_after(text, messages[-1]["content"]) if continue_final_message else text


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
