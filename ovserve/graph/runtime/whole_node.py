"""The one node of a graph that answers as a whole: it is called by the task that reads the answer.

A task of its own would cost a short request two more turns of the event loop and a copy of its context.
Nothing could happen between them: the input is complete when the reader comes, and the output when the node
returns. Rules, errors and taps are those of any node that waits.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ovserve.graph.loading import NodeState
from ovserve.graph.plan import NodePlan
from ovserve.graph.runtime.task_node import TaskNode

if TYPE_CHECKING:
    from ovserve.graph.runtime.scheduler import GraphRun


class WholeNode(TaskNode):
    __slots__ = ("_stopped",)

    def __init__(self, run: GraphRun, plan: NodePlan, state: NodeState) -> None:
        super().__init__(run, plan, state)
        self._stopped = False  # by the run, and not by the reader's own end

    def start(self) -> None:
        """The reader calls `drive`."""

    def stop(self) -> None:
        if self.task is not None and not self._stopped:
            self._stopped = True
            self.task.cancel()

    async def drive(self) -> None:
        """Run the node to its end, once. What it raises is the run's error."""
        self.task = reader = asyncio.current_task()
        assert reader is not None, "a coroutine on the event loop"
        before = reader.cancelling()
        try:
            await self._main()
        except asyncio.CancelledError:
            # As in asyncio.timeout: a cancellation that came from elsewhere goes on.
            if not self._stopped or reader.uncancel() > before:
                raise
        else:
            if self._stopped:  # too late for the node, which has finished
                reader.uncancel()
        finally:
            self.task = None  # the run must not wait for it
