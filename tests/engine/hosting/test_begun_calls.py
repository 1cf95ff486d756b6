"""Calls that a backend begins run together if they arrive together, and all of them end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from ovserve.engine.protocol.blobs import Segments
from ovserve.engine.protocol.call_backend import Deliver, Invocation, Outcome, Result
from ovserve.engine.protocol.frames import Channel
from ovserve.engine.protocol.messages import (
    Call,
    FromEngine,
    FromModel,
    Item,
    Load,
    Ready,
    Stop,
    ToEngine,
    ToModel,
    Unloaded,
)
from ovserve.engine.protocol.specs import Facts, Spec
from ovserve.engine.worker import host


class JoinSpec(Spec, frozen=True):
    kind: ClassVar[str] = "join"
    backend: ClassVar[str] = "tests.engine.hosting.test_begun_calls:Join"


class Join:
    """It answers each call with the number of calls that ran with it."""

    facts = Facts(engine="join 1.0")

    def __init__(self, spec: JoinSpec) -> None:
        self._begun: list[Invocation] = []
        self._deliver: Deliver = lambda ended: None

    def begin(self, invocation: Invocation, deliver: Deliver) -> bool:
        self._deliver = deliver
        self._begun.append(invocation)
        return True

    def began(self) -> None:
        begun, self._begun = self._begun, []
        ended: Sequence[tuple[Invocation, Outcome]] = [(i, Result(len(begun), last=True)) for i in begun]
        threading.Timer(0.05, self._deliver, (ended,)).start()

    def call(self, invocation: Invocation) -> Iterator[Any]:
        raise AssertionError("every call is begun")


@pytest.fixture
def server_end() -> Iterator[Channel[FromEngine]]:
    """A process of many models, on a thread, with the model 1."""
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    serving: Channel[ToEngine] = Channel(theirs, ToEngine)
    thread = threading.Thread(target=host.run, args=(serving, Segments(0, "test-begun")), daemon=True)
    thread.start()
    channel: Channel[FromEngine] = Channel(ours, FromEngine)
    read(channel, 1)
    channel.send(ToModel(1, Load.of(JoinSpec(str(Path.cwd())))))
    (ready,) = read(channel, 1)
    assert isinstance(ready, FromModel)
    assert isinstance(ready.message, Ready)
    yield channel
    channel.send(Stop())
    thread.join(60)
    ours.close()
    theirs.close()


def read(channel: Channel[FromEngine], count: int) -> list[Any]:
    messages: list[Any] = []
    while len(messages) < count:
        messages += channel.receive(block=True)
    return messages


def sizes(messages: list[Any]) -> list[int]:
    return [msgspec.msgpack.decode(m.message.value) for m in messages if isinstance(m.message, Item)]


def test_calls_that_arrive_together_run_together(server_end: Channel[FromEngine]) -> None:
    server_end.send(*(ToModel(1, Call(number, "join", b"")) for number in range(3)))
    assert sizes(read(server_end, 3)) == [3, 3, 3]
    server_end.send(ToModel(1, Call(3, "join", b"")))
    assert sizes(read(server_end, 1)) == [1]


def test_a_call_with_an_unload_right_behind_it_is_answered(server_end: Channel[FromEngine]) -> None:
    server_end.send(ToModel(1, Call(0, "join", b"")), ToModel(1, Stop()))
    *answer, end = read(server_end, 2)
    assert sizes(answer) == [1]
    assert isinstance(end.message, Unloaded)
