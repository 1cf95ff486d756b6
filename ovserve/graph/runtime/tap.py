"""A Tap watches the runs of one graph: which node was called for how long, which packet went by.

It is for a console that shows a graph at work. A graph has a `TapSlot`, which is empty while no one watches;
then a packet and a call cost one test each. A tap put into the slot sees runs that have begun before, from
then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ovserve.graph.runtime.node_run import NodeRun
    from ovserve.graph.runtime.scheduler import GraphRun
    from ovserve.graph.runtime.streams import Stream


class Tap(Protocol):
    """Called on the event loop, in the middle of a run: short, and never raising."""

    def started(self, run: GraphRun) -> None:
        """Called in the context of the request, before any node is opened."""

    def ended(self, run: GraphRun) -> None: ...

    def packet(self, stream: Stream, timestamp: int, value: Any) -> None:
        """Called before the packet is put into the queues of the stream."""

    def called(self, node: NodeRun, seconds: float) -> None:
        """Report one return of `process()`; `seconds` include what it waited for."""

    def failed(self, run: GraphRun, node: str) -> None: ...


class TapSlot:
    """The place for the tap of a graph; None while no one watches. `errors` are kept at any time: the last
    one of each node, with the Unix time in seconds."""

    __slots__ = ("errors", "tap")

    def __init__(self) -> None:
        self.tap: Tap | None = None
        self.errors: dict[str, tuple[float, str]] = {}
