"""The Responses service's knowledge of a request besides its body; the HttpPayload carries it to the
graph."""

from __future__ import annotations

import time

import msgspec

from ovserve.api.openai.common import new_id
from ovserve.api.openai.responses.mcp import McpOffer


def _id() -> str:
    return new_id("resp_")


def _now() -> int:
    return int(time.time())


class ResponseContext(msgspec.Struct, frozen=True, kw_only=True):
    """A request that no service has prepared gets an id of its own, and no history."""

    id: str = msgspec.field(default_factory=_id)
    created: int = msgspec.field(default_factory=_now)
    store: bool = False
    history: tuple[msgspec.Raw, ...] = ()  # items of earlier responses, in the stored form
    # The tools of MCP servers that the request may use; None: the graph has no servers.
    mcp: tuple[McpOffer, ...] | None = None
    done: tuple[msgspec.Raw, ...] = ()  # items of the response itself, of its rounds before
