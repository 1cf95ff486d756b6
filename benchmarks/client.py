"""A lean streaming client: raw asyncio, one kept connection per stream, nothing parsed while it runs.

Used by `compare.py`, `idle.py`, `peers.py` and `profiling.py`. On arrival it only notes the time and keeps
the bytes; events, usage and finish are read from them afterwards, so the client takes little of the two cores
it shares (its CPU is part of the report).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ovserve.cli.serve import new_event_loop as new_event_loop

EVENT = b"data: "
LAST_CHUNK = b"\r\n0\r\n\r\n"  # a head may end with "max=100\r\n\r\n"


@dataclass
class Answer:
    """One streamed answer; `times` has an entry per content event."""

    sent: float = 0.0
    times: list[float] = field(default_factory=list)
    reads: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    raw: tuple[list[float], list[bytes]] = field(default_factory=lambda: ([], []), repr=False)

    def read(self) -> None:
        """Fill the fields from what arrived; called when the round is over and its CPU counted.

        An event belongs to the arrival of its last byte; events without content are not counted.
        """
        arrived, pieces = self.raw
        self.reads = len(pieces)
        buffer = b""
        for when, piece in zip(arrived, pieces, strict=True):
            *events, buffer = (buffer + piece).split(b"\n\n")
            for event in events:
                if (at := event.find(EVENT)) >= 0:  # else a comment, of a stream that was silent
                    self._event(event[at + len(EVENT) :], when)

    def _event(self, data: bytes, when: float) -> None:
        if data == b"[DONE]":
            return
        value = json.loads(data)
        if "error" in value:
            raise RuntimeError(f"the stream ended with an error: {value}")
        if usage := value.get("usage"):
            self.prompt_tokens = usage["prompt_tokens"]
            self.completion_tokens = usage["completion_tokens"]
        if any(_content(choice) for choice in value["choices"]):
            self.times.append(when)


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.arrived: list[float] = []
        self.pieces: list[bytes] = []
        self.done: asyncio.Future[None] | None = None
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.arrived.append(time.monotonic())
        self.pieces.append(data)
        short = len(data) < len(LAST_CHUNK)
        if (b"".join(self.pieces[-len(LAST_CHUNK) :]) if short else data).endswith(LAST_CHUNK):
            assert self.done is not None
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(
                ConnectionError(f"the server closed the connection: {self.text()[-300:]!r}")
            )

    def text(self) -> bytes:
        return b"".join(self.pieces)

    async def ask(self, request: bytes) -> Answer:
        self.arrived, self.pieces = [], []
        self.done = asyncio.get_running_loop().create_future()
        answer = Answer(time.monotonic())
        self.transport.write(request)
        await self.done
        if not self.pieces[0].startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"the server rejected the request: {self.text()[:600]!r}")
        answer.raw = self.arrived, self.pieces
        return answer


def _content(choice: dict[str, Any]) -> str:
    return choice.get("text") or choice.get("delta", {}).get("content") or ""


def request(
    port: int,
    prompt: str | list[int],
    tokens: int,
    model: str = "smollm2",
    path: str = "/v3/completions",
    more: Mapping[str, Any] = MappingProxyType({}),
) -> bytes:
    """The bytes of one streamed greedy completion of exactly `tokens` tokens. `more`: further fields."""
    body = json.dumps(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **more,
        }
    ).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def run(port: int, requests: list[bytes], concurrency: int) -> list[Answer]:
    """A closed loop: each stream asks the next question as soon as it has its answer."""
    loop = asyncio.get_running_loop()
    waiting, answers = deque(requests), list[Answer]()

    async def connected() -> _Connection:
        connections.append((await loop.create_connection(_Connection, "127.0.0.1", port))[1])
        return connections[-1]

    connections: list[_Connection] = []
    first = [await connected() for _ in range(concurrency)]

    async def stream(connection: _Connection) -> None:
        while waiting:
            request = waiting.popleft()
            try:
                answers.append(await connection.ask(request))
            except ConnectionError:
                if connection.pieces:
                    raise
                # Closed after an answer, as llama.cpp's server does; ours keeps it.
                connection = await connected()
                answers.append(await connection.ask(request))

    try:
        async with asyncio.TaskGroup() as group:
            for connection in first:
                group.create_task(stream(connection))
    finally:
        for connection in connections:
            connection.transport.abort()
    return answers
