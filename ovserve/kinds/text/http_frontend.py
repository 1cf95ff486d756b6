"""HttpFrontendCalculator: the first node. Decodes the body for its endpoint and rejects a malformed one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ovserve.api.openai.endpoint import TextEndpoint
from ovserve.api.openai.responses.context import ResponseContext
from ovserve.errors import NotFound
from ovserve.graph import Context, Input, Output, calculator
from ovserve.kinds.payload import HttpCalculator, HttpPayload
from ovserve.kinds.text.endpoints import ENDPOINTS
from ovserve.kinds.text.large import decode_within, parse
from ovserve.kinds.text.resource import LlmResources
from ovserve.llm.grammar.budget import Costly, in_loop
from ovserve.llm.request import GenerateRequest


@dataclass(frozen=True)
class DecodedRequest:
    """A body and the endpoint that understands it. A `large` one, or one with a schema that takes long, is
    decoded in a process of its own, when the request is made of it; to read `decoded` holds the event loop
    until then."""

    endpoint: TextEndpoint
    body: bytes
    large: bool = False
    context: ResponseContext | None = None

    @cached_property
    def decoded(self) -> Any:
        """The body as the endpoint's `decode` returns it. Raises InvalidArgument."""
        return decode_within(self.endpoint, self.body, self.context)

    async def to_request(self, llm: LlmResources) -> GenerateRequest:
        """Raises InvalidArgument."""
        if not self.large:
            with suppress(Costly), in_loop():
                return self.endpoint.to_request(self.decoded, llm.model)
        return await llm.bodies.run(True, parse, self.endpoint.name, self.body, llm.model, self.context)


def decode(payload: HttpPayload) -> DecodedRequest:
    """Raises NotFound for an endpoint that text generation does not have, InvalidArgument for a bad body."""
    endpoint = ENDPOINTS.get(payload.endpoint)
    if endpoint is None:
        raise NotFound(f"{payload.endpoint!r} is not served by this graph; it has {', '.join(ENDPOINTS)}")
    request = DecodedRequest(endpoint, payload.body, payload.head.large, payload.context)
    if request.large:
        return request
    try:
        with in_loop():
            _ = request.decoded  # what is wrong with it is raised by this node
    except Costly:
        return replace(request, large=True)
    return request


@calculator("HttpFrontendCalculator")
class HttpFrontend(HttpCalculator):
    endpoints = ENDPOINTS

    http = Input("HTTP_REQUEST_PAYLOAD", HttpPayload)
    decoded = Output("DECODED", DecodedRequest)

    def process(self, cc: Context) -> None:
        payload = cc[self.http]
        if payload is not None:
            cc.send(self.decoded, decode(payload))
