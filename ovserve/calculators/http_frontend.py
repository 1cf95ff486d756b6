"""HttpFrontendCalculator: the first node. Decodes the body for its endpoint and refuses what is malformed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ovserve.calculators.endpoints import ENDPOINTS
from ovserve.calculators.payload import HttpPayload
from ovserve.errors import NotFound
from ovserve.graph import Calculator, Context, Input, Output, calculator
from ovserve.openai.endpoint import Endpoint


@dataclass(frozen=True)
class DecodedRequest:
    """A well-formed body and the endpoint that understands it."""

    endpoint: Endpoint
    decoded: Any


def decode(payload: HttpPayload) -> DecodedRequest:
    """Raises NotFound for an endpoint text generation does not have, InvalidArgument for a bad body."""
    endpoint = ENDPOINTS.get(payload.endpoint)
    if endpoint is None:
        raise NotFound(f"{payload.endpoint!r} is not served by this graph; it has {', '.join(ENDPOINTS)}")
    return DecodedRequest(endpoint, endpoint.decode(payload.body))


@calculator("HttpFrontendCalculator")
class HttpFrontend(Calculator):
    http = Input("HTTP_REQUEST_PAYLOAD", HttpPayload)
    decoded = Output("DECODED", DecodedRequest)

    def process(self, cc: Context) -> None:
        payload = cc[self.http]
        if payload is not None:
            cc.send(self.decoded, decode(payload))
