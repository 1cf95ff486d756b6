"""Small calculators that the graph tests are built of."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from ovserve.graph import (
    Calculator,
    Context,
    Contract,
    Input,
    Node,
    Output,
    Registry,
    SideOutput,
    SidePacket,
    calculator,
)


@calculator("Double")
class Double(Calculator):
    a = Input("IN", int)
    b = Output("OUT", int)

    async def process(self, cc: Context) -> None:
        if (value := cc[self.a]) is not None:
            cc.send(self.b, value * 2)


@calculator("Even")
class Even(Calculator):
    """Passes even numbers; silent otherwise."""

    a = Input("IN", int)
    b = Output("OUT", int)

    async def process(self, cc: Context) -> None:
        value = cc[self.a]
        if value is not None and value % 2 == 0:
            cc.send(self.b, value)


@calculator("Join")
class Join(Calculator):
    """A tuple of everything at one timestamp, None where a stream is silent."""

    @classmethod
    def get_contract(cls, node: Node) -> Contract:
        return Contract(tuple(Input(f"{e.tag}:{e.index}") for e in node.inputs), (Output("OUT"),))

    async def process(self, cc: Context) -> None:
        cc.send(cc.contract.outputs[0], tuple(cc[p] for p in cc.contract.inputs))


@calculator("Countdown")
class Countdown(Calculator):
    """From the number given down to 1, one a call, by LOOPBACK."""

    start = Input("IN", int)
    tick_in = Input("LOOPBACK", int)
    out = Output("OUT", int)
    tick_out = Output("LOOPBACK", int)

    async def process(self, cc: Context) -> None:
        value = cc[self.start] or cc[self.tick_in]
        assert value is not None
        await asyncio.sleep(0)
        cc.send(self.out, value)
        if value > 1:
            cc.send(self.tick_out, value - 1)


@calculator("Sum")
class Sum(Calculator):
    """Folds a stream; answers in close()."""

    a = Input("IN", int)
    b = Output("OUT", int)

    async def open(self, cc: Context) -> None:
        self.total = 0

    async def process(self, cc: Context) -> None:
        self.total += cc[self.a] or 0

    async def close(self, cc: Context) -> None:
        cc.send(self.b, self.total)


@calculator("Source")
class Source(Calculator):
    """0, 1, 2, ... up to the side packet."""

    b = Output("OUT", int)
    limit = SidePacket("LIMIT", int)

    async def process(self, cc: Context) -> None:
        cc.send(self.b, cc.timestamp)
        if cc.timestamp + 1 == cc[self.limit]:
            cc.finish()


@calculator("MakeLimit")
class MakeLimit(Calculator):
    limit = SideOutput("LIMIT", int)
    base = SidePacket("BASE", int)

    async def open(self, cc: Context) -> None:
        await asyncio.sleep(0)
        cc.set_side(self.limit, cc[self.base] + 1)


@calculator("Blocking")
class Blocking(Calculator):
    """Answers with the name of the thread it ran on."""

    a = Input("IN", object)
    b = Output("OUT", str)

    async def process(self, cc: Context) -> None:
        time.sleep(0.01)  # noqa: ASYNC251 blocking is what this one is for
        cc.send(self.b, threading.current_thread().name)


@calculator("AlwaysThread")
class AlwaysThread(Blocking):
    runs_on = "thread"


@calculator("Slow")
class Slow(Calculator):
    """Passes packets on after a pause that the test chooses: {timestamp: event loop turns}."""

    a = Input("IN", object)
    b = Output("OUT", object)
    turns = SidePacket("TURNS", object)

    async def process(self, cc: Context) -> None:
        turns: Any = cc[self.turns]
        for _ in range(turns(cc.node.name, cc.timestamp)):
            await asyncio.sleep(0)
        cc.send(self.b, cc[self.a])


@calculator("Fails")
class Fails(Calculator):
    """Raises in the phase named by its side packet, and tells `seen` what was called."""

    a = Input("IN", object)
    b = Output("OUT", object)
    phase = SidePacket("PHASE", str)
    seen = SidePacket("SEEN", list)

    async def _call(self, cc: Context, phase: str) -> None:
        cc[self.seen].append(f"{cc.node.name}.{phase}")
        if cc[self.phase] == f"{cc.node.name}.{phase}":
            raise ZeroDivisionError(f"no luck in {phase}")

    async def open(self, cc: Context) -> None:
        await self._call(cc, "open")

    async def process(self, cc: Context) -> None:
        cc.send(self.b, cc[self.a])
        await self._call(cc, "process")

    async def close(self, cc: Context) -> None:
        await self._call(cc, "close")


REGISTRY = Registry()
for _cls in (
    Double, Even, Join, Countdown, Sum, Source, MakeLimit, Blocking, AlwaysThread, Slow, Fails,
):  # fmt: skip
    REGISTRY.add(_cls)


def _now(cls: type[Calculator]) -> type[Calculator]:
    """The same calculator in plain functions; for those that never wait."""

    def plain(name: str) -> Any:
        method = getattr(cls, name)

        def call(self: Calculator, cc: Context) -> None:
            if (coro := method(self, cc)) is not None:
                try:
                    coro.send(None)
                except StopIteration:
                    return
                raise AssertionError("it waits")

        return call

    methods = {name: plain(name) for name in ("open", "process", "close")}
    made = calculator(cls.__dict__["__calculator_name__"])(type(cls.__name__, (cls,), methods))
    assert not made.waits
    return made


INLINE = Registry()
for _cls in (Double, Even, Join, Sum, Blocking, AlwaysThread, Fails):
    INLINE.add(_now(_cls))
for _cls in (Countdown, Source, MakeLimit, Slow):
    INLINE.add(_cls)
REGISTRIES = {"tasks": REGISTRY, "inline": INLINE}
