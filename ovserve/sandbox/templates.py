"""Templates: the server's handle on chat templates: compile at load, render per request.

A chat template is a program that came with a model, and it runs on untrusted input. It may loop over a
range in a range, double a string forty times, or be quadratic in the messages. A deadline woven into the
compiled template catches loops, but not `'x' * 10**9`, `|center(10**9)` or a `|replace` in a `|replace`:
each filter and method would need a limit of its own. A process needs none of that. The price is 15 MB of
memory, and 0.1 ms for a short prompt (`make bench-micro`).

One process is kept; a second is started when a request has waited for GROW_AFTER, so that one slow template
does not delay other requests.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ovserve.errors import Internal, InvalidArgument, LoadError, PayloadTooLarge
from ovserve.llm.arrangement import Expectations
from ovserve.llm.chat_template import ChatTemplate, Conversation, EncodedConversation
from ovserve.sandbox.messages import OutOfMemory
from ovserve.sandbox.pool import CallTimeout, Pool, ProcessEnded

# For one prompt, and for a free process; a conversation of 10 MB takes a tenth of a second.
RENDER_SECONDS = 5.0
MAX_MEMORY = 1 << 30  # bytes of a process's address space
GROW_AFTER = 0.1  # seconds
FUNCTIONS = "ovserve.sandbox.rendering"  # imports jinja2, so the server does not import it
COMPILE, RENDER = f"{FUNCTIONS}:compile_template", f"{FUNCTIONS}:render"


class Templates:
    """Times in seconds, memory in bytes. A graph without chat templates costs nothing."""

    def __init__(
        self, *, seconds: float = RENDER_SECONDS, memory: int = MAX_MEMORY, grow_after: float = GROW_AFTER
    ) -> None:
        self.pool = Pool(
            f"{FUNCTIONS}:initialize",
            seconds=seconds,
            memory=memory,
            wait=seconds,
            grow_after=grow_after,
            process="template process",
        )

    def prepare(self) -> None:
        """Start a process in advance, for a template that is about to come."""
        self.pool.prepare()

    async def load(self, template: ChatTemplate) -> ChatTemplate:
        """Return the template with its expectations filled in. Raises LoadError in jinja's words."""
        try:
            expects: Expectations = await self._call(Expectations, COMPILE, template.key, template)
        except InvalidArgument as error:  # it took too long
            raise LoadError(error.message) from error
        return dataclasses.replace(template, expects=expects)

    async def render(self, template: ChatTemplate, conversation: Conversation | EncodedConversation) -> str:
        """Return the prompt. Raises InvalidArgument in the template's words, or when rendering takes too
        long."""
        try:
            if isinstance(conversation, Conversation):
                conversation = EncodedConversation.of(conversation)
            prompt: str | None = await self._call(str | None, RENDER, template.key, conversation.json)
            if prompt is None:  # a process that has not compiled it
                prompt = await self._call(str | None, RENDER, template.key, conversation.json, template)
        except InvalidArgument as error:
            error.param = error.param or conversation.param
            raise
        except PayloadTooLarge as error:
            error.param = conversation.param
            raise
        except (RecursionError, UnicodeEncodeError) as error:
            raise InvalidArgument.at(
                conversation.param, f"cannot be passed to the chat template: {error}"
            ) from error
        assert prompt is not None
        return prompt

    async def stop(self) -> None:
        await self.pool.stop()

    async def _call(self, returns: Any, function: str, *arguments: Any) -> Any:
        try:
            return await self.pool.call(function, *arguments, label="a chat template", returns=returns)
        except CallTimeout:
            raise InvalidArgument(
                f"the chat template did not finish within {self.pool.seconds:g} s"
            ) from None
        except OutOfMemory:
            raise InvalidArgument("the chat template needs too much memory for these messages") from None
        except ProcessEnded as ended:
            raise InvalidArgument(f"the chat template ended its process twice, with {ended.code}") from None
        except Internal:
            raise InvalidArgument("the chat template failed; the server's log has details") from None
