"""The packets between the nodes of a realtime graph."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec

from ovserve.api.openai.realtime.config import Format
from ovserve.errors import OvserveError
from ovserve.llm.output import ToolCall, ToolResult
from ovserve.llm.request import ToolPolicy


class Samples(Protocol):
    """Audio at 16 kHz: a `Recording`, or a clip in memory."""

    samples: int

    @property
    def seconds(self) -> float: ...

    @property
    def closed(self) -> bool: ...

    def read(self, begin: int, count: int) -> bytes: ...

    def close(self) -> None: ...


class Run:
    """The work for one response or transcript, which each of its packets carries.

    Once it is cancelled, nodes drop its packets and stop the models that work on it. An `early` one answers a
    turn that may go on: a node that does more than send packets waits for `sure` before."""

    __slots__ = ("_ends", "cancelled", "id", "sure")

    def __init__(self, id_: str, *, early: bool = False) -> None:
        self.id = id_
        self.cancelled = False
        self.sure = asyncio.Event()
        if not early:
            self.sure.set()
        self._ends: list[Callable[[], object]] = []

    def cancel(self) -> None:
        self.cancelled = True
        for end in tuple(self._ends):
            end()

    @contextmanager
    def ending(self, end: Callable[[], object]) -> Iterator[None]:
        """Inside, `cancel` calls `end`."""
        self._ends.append(end)
        try:
            yield
        finally:
            self._ends.remove(end)


class Manner(msgspec.Struct, frozen=True):
    voice: str
    speed: float
    format: Format


class Prompt(msgspec.Struct, frozen=True):
    """A response to be generated. `manner` is None for one of text."""

    run: Run
    messages: list[dict[str, Any]]
    policy: ToolPolicy | None = None  # the client's tools; those of the graph are added
    max_tokens: int = 4096
    truncate: bool = True  # leave out the oldest turns of a conversation that does not fit
    manner: Manner | None = None


class Tokens(msgspec.Struct, frozen=True):
    """The tokens that the language model read and wrote."""

    read: int = 0
    cached: int = 0
    written: int = 0


class Answer(msgspec.Struct, frozen=True):
    """A part of a response. The one with `last` says why it ended or failed."""

    run: Run
    text: str = ""
    calls: tuple[ToolCall, ...] = ()  # of the client's tools, whole
    audio: bytes = b""  # of `text`, in the format of `manner`
    manner: Manner | None = None
    last: bool = False
    finish_reason: str | None = None
    tokens: Tokens = Tokens()  # so far
    error: OvserveError | None = None
    result: ToolResult | None = None  # of a call of the graph's own tools; no event shows it


class Sound(msgspec.Struct, frozen=True):
    """Audio as it came in; `end` counts the samples of the session up to its end."""

    audio: bytes
    end: int
    last: bool = False  # no more may follow: look at all of it


class Activity(msgspec.Struct, frozen=True):
    """The probability of speech in each 32 ms; `end` counts samples like `Sound.end`."""

    probabilities: tuple[float, ...]
    end: int
    error: OvserveError | None = None


class Utterance(msgspec.Struct, frozen=True):
    """Speech to be written down. Transcripts of one run are in the order of its packets.

    A recording is closed when it has been written down, and by its sender at the end of the graph's run."""

    run: Run
    audio: bytes | Samples
    language: str = ""
    prompt: str = ""
    hotwords: str = ""


class Transcript(msgspec.Struct, frozen=True):
    """Text of an utterance; `last` ends it."""

    run: Run
    text: str = ""
    last: bool = False
    error: OvserveError | None = None
