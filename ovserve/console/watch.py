"""Count what nodes and streams of a graph do, while it is watched or a capture runs.

A `GraphWatch` is put into the slot of the graph that serves a name, and into the next one's after a reload.
Its counters only grow; who shows them takes differences.

Captures show a packet in a few words: its sizes without what a client wrote, and an excerpt of its text.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ovserve.api.kserve.tensor import Tensor
from ovserve.api.openai.realtime import packets as realtime
from ovserve.console.capture import Capture, describe
from ovserve.graph.runtime.streams import Stream
from ovserve.kinds.payload import HttpPayload, HttpResponse
from ovserve.llm.audio import SAMPLE_BYTES, SAMPLES_PER_SECOND
from ovserve.llm.output import Parsed
from ovserve.llm.request import Delta, GenerateRequest
from ovserve.serving.manager import Manager

EXCERPT_CHARACTERS = 300  # characters


def summary(value: Any) -> str:
    """Return the sizes of a packet. It holds nothing of its content."""
    if isinstance(value, HttpPayload):
        return f"{value.endpoint}, {len(value.body)} bytes"
    if isinstance(value, GenerateRequest):
        return _request(value)
    if isinstance(value, Delta):
        return _delta(value)
    if isinstance(value, Parsed):
        return ", ".join(type(part).__name__ for part in value.parts) or "no part"
    if isinstance(value, HttpResponse):
        return f"{len(value.body)} bytes of {value.content_type}"
    if isinstance(value, bytes | str):
        return f"{len(value)} {'bytes' if isinstance(value, bytes) else 'characters'}"
    if isinstance(value, Tensor):
        return f"{value.datatype} {list(value.shape)}"
    words = REALTIME.get(type(value))
    return words(value) if words is not None else ""


REALTIME: dict[type, Callable[[Any], str]] = {
    realtime.Sound: lambda v: f"{len(v.audio) // SAMPLE_BYTES} samples",
    realtime.Activity: lambda v: (
        f"{len(v.probabilities)} frames, speech {max(v.probabilities, default=0):.2f}"
    ),
    realtime.Utterance: lambda v: f"{len(v.audio) / SAMPLE_BYTES / SAMPLES_PER_SECOND:.1f} s",
    realtime.Transcript: lambda v: f"{len(v.text)} characters",
    realtime.Prompt: lambda v: f"{len(v.messages)} messages",
    realtime.Answer: lambda v: f"{len(v.text)} characters, {len(v.audio)} bytes of audio",
}


def _request(value: GenerateRequest) -> str:
    tokens = value.sampling.max_tokens
    parts = [f"prompt of {len(p)} {'characters' if isinstance(p, str) else 'ids'}" for p in value.prompts[:3]]
    parts += [f"{len(value.images)} images"] if value.images else []
    return ", ".join([*parts, f"max_tokens {tokens}" if tokens is not None else "max_tokens not set"])


def _delta(value: Delta) -> str:
    parts = [f"admission of {value.prompt_tokens} tokens"] if value.prompt_tokens else []
    parts += [f"{value.tokens} token{'' if value.tokens == 1 else 's'}"] if value.tokens else []
    return ", ".join([*parts, *([value.finish_reason] if value.finish_reason else [])])


def excerpt(value: Any) -> str:
    """Return the beginning of what a person reads of a packet."""
    description = describe(value)
    if "parts" in description:
        return "".join(part.get("text", "") for _, part in description["parts"])[:EXCERPT_CHARACTERS]
    return str(description.get("text") or " ".join(description.get("prompts", ())))[:EXCERPT_CHARACTERS]


LEAST_SECONDS = 1e-6  # the upper bound of the first bucket of call times
BUCKET_GROWTH = math.log(1.2)  # a percentile is read to a tenth; a call of an hour is in bucket 121


@dataclass(slots=True)
class NodeCount:
    calls: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    errors: int = 0
    buckets: Counter[int] = field(default_factory=Counter)  # calls by their time; bucket n ends at 1.2**n us

    def called(self, seconds: float) -> None:
        self.calls += 1
        self.seconds += seconds
        self.longest = max(self.longest, seconds)
        at = math.log(seconds / LEAST_SECONDS) / BUCKET_GROWTH if seconds > LEAST_SECONDS else 0.0
        self.buckets[math.ceil(at)] += 1


@dataclass(slots=True)
class StreamCount:
    packets: int = 0
    longest: int = 0  # packets in the fullest of its queues
    last: Any = None  # the newest packet, for its summary
    at: float = 0.0  # when it went by, `time.monotonic()`


@dataclass
class GraphWatch:
    """A `Tap` of one name. With a `capture`, it passes runs and packets on."""

    name: str
    capture: Capture | None = None
    viewers: int = 0
    nodes: dict[str, NodeCount] = field(default_factory=dict)
    streams: dict[str, StreamCount] = field(default_factory=dict)

    def started(self, run: object) -> None:
        if self.capture is not None:
            self.capture.begin(run, self.name)

    def ended(self, run: object) -> None:
        if self.capture is not None:
            self.capture.end(run)

    def packet(self, stream: Stream, timestamp: int, value: Any) -> None:
        count = self.streams.get(stream.name)
        if count is None:
            count = self.streams[stream.name] = StreamCount()
        count.packets += 1
        count.last, count.at = value, time.monotonic()
        for queue in stream.queues:
            if len(queue.packets) >= count.longest and not queue.swallow:
                count.longest = len(queue.packets) + 1
        if self.capture is not None:
            self.capture.packet(stream.run, stream.name, value)

    def called(self, node: str, seconds: float) -> None:
        self._node(node).called(seconds)

    def failed(self, run: object, node: str) -> None:
        self._node(node).errors += 1

    def _node(self, name: str) -> NodeCount:
        count = self.nodes.get(name)
        if count is None:
            count = self.nodes[name] = NodeCount()
        return count

    def snapshot(self) -> dict[str, Any]:
        return {
            "nodes": {
                n: [c.calls, c.seconds, c.longest, c.errors, dict(c.buckets)] for n, c in self.nodes.items()
            },
            "streams": {n: [c.packets, c.longest] for n, c in self.streams.items()},
        }

    def forget(self) -> None:
        """Let go of the packets that are kept for their summary."""
        for count in self.streams.values():
            count.last = None

    def packets(self) -> dict[str, Any]:
        """Return the last packet of each stream: its type, sizes and age, and its text while a capture
        runs."""
        now = time.monotonic()
        return {
            name: {
                "type": type(count.last).__name__,
                "summary": summary(count.last),
                "age": now - count.at,
                "text": excerpt(count.last) if self.capture is not None else None,
            }
            for name, count in self.streams.items()
            if count.last is not None  # forgotten while there was no viewer
        }


class Watches:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._watches: dict[str, GraphWatch] = {}
        self.capture: Capture | None = None

    def attach(self) -> None:
        """Put each watch that is wanted into the graph that serves its name now, and take out the others."""
        for servable in self._manager.servables:
            watch = self._watches.get(servable.name)
            if watch is None and self.capture is not None:
                watch = self._watches[servable.name] = GraphWatch(servable.name)
            if watch is None:
                continue
            watch.capture = self.capture
            is_needed = watch.viewers or watch.capture is not None
            if not watch.viewers:
                watch.forget()
            servable.graph.watched.tap = watch if is_needed else None
        for name in [n for n, w in self._watches.items() if not w.viewers and w.capture is None]:
            del self._watches[name]

    @contextmanager
    def viewing(self, name: str) -> Iterator[GraphWatch]:
        """Inside, the graph of this name is counted."""
        watch = self._watches.setdefault(name, GraphWatch(name))
        watch.viewers += 1
        try:
            self.attach()
            yield watch
        finally:
            watch.viewers -= 1
            self.attach()
