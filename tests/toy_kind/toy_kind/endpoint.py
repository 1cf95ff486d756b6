"""POST /v3/toy/count: the body of the toy's one endpoint."""

from __future__ import annotations

import msgspec

from ovserve.api.openai.body import decode_body


class CountRequest(msgspec.Struct, frozen=True):
    model: str
    start: int
    stream: bool = False


class Count:
    name = "toy/count"

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(CountRequest)

    def decode(self, body: bytes) -> CountRequest:
        """Raises InvalidArgument naming the field."""
        return decode_body(body, self._decoder)[0]


COUNT = Count()
