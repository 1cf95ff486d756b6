"""A decoded body of responses, and what the writer of its response reads of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec

from ovserve.api.openai.common import encode
from ovserve.api.openai.responses.context import ResponseContext
from ovserve.api.openai.responses.events import StoredInput
from ovserve.api.openai.responses.items import Item, listed
from ovserve.api.openai.responses.request import ResponseRequest
from ovserve.api.openai.responses.tools import Tools, clean_tools
from ovserve.llm.request import Presentation

_item = msgspec.json.Decoder(Item)


@dataclass(frozen=True)
class DecodedResponses:
    body: ResponseRequest
    items: tuple[Item, ...]  # this request's own input
    tools: Tools
    ignored: tuple[str, ...]

    context: ResponseContext = field(default_factory=ResponseContext)
    kept: StoredInput | None = None  # of a request without its input

    @property
    def history(self) -> list[Item]:
        return [_item.decode(raw) for raw in self.context.history]

    @property
    def done(self) -> list[Item]:
        return [_item.decode(raw) for raw in self.context.done]

    def within(self, context: ResponseContext) -> DecodedResponses:
        """The same with what the service knows of it. Raises InvalidArgument."""
        if context.mcp is None:
            return replace(self, context=context)
        body = self.body
        tools = clean_tools(body.tools, body.tool_choice, body.parallel_tool_calls, context.mcp)
        ignored = tuple(name for name in self.ignored if name not in self.tools.ignored)
        return replace(self, context=context, tools=tools, ignored=(*ignored, *tools.ignored))

    @cached_property
    def stored_input(self) -> StoredInput:
        """This request's own input as the store keeps it and as GET input_items lists it."""
        if self.kept is not None:
            return self.kept
        items = listed(self.items)
        return StoredInput(encode(items), [item["id"] for item in items])

    def without_input(self) -> DecodedResponses:
        """The same without the conversation, which may be large; with what is stored of it."""
        body = msgspec.structs.replace(self.body, input="")
        context = msgspec.structs.replace(self.context, history=(), mcp=None, done=())
        return replace(self, body=body, items=(), context=context, kept=self.stored_input)


class ResponsePresentation(Presentation, frozen=True, kw_only=True):
    """A response echoes most fields of its request."""

    decoded: DecodedResponses

    def without_input(self) -> ResponsePresentation:
        return msgspec.structs.replace(self, decoded=self.decoded.without_input())
