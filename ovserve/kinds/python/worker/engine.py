"""The backend of Python nodes: all handlers of one graph."""

from __future__ import annotations

import platform
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ovserve.engine.protocol.call_backend import Invocation, Result
from ovserve.errors import NotFound
from ovserve.kinds.python.spec import EXECUTE, ExecuteArguments, PythonFacts, PythonSpec
from ovserve.kinds.python.worker import pyovms
from ovserve.kinds.python.worker.deadlines import Deadlines
from ovserve.kinds.python.worker.handlers import Handler
from ovserve.kinds.python.worker.modules import Modules
from ovserve.kinds.python.worker.output import mark_output


@dataclass
class PythonEngine:
    """A `CallBackend` with the method `execute`. Handlers are initialised in the order of the nodes.

    Raises LoadError naming the node; the handlers before it are finalised then.
    """

    spec: PythonSpec

    def __post_init__(self) -> None:
        began = time.monotonic()
        mark_output(self.spec.servable)
        # Ignored by the worker, and a program that a handler starts would inherit that.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        sys.modules["pyovms"] = pyovms
        modules, deadlines = Modules(), Deadlines()
        self._handlers: dict[str, Handler] = {}
        try:
            for node in self.spec.nodes:
                self._handlers[node.name] = Handler(node, modules, deadlines)
        except BaseException:
            self.close()
            raise
        version = platform.python_version()
        self.facts = PythonFacts(
            engine=f"python {version}",
            load_seconds=round(time.monotonic() - began, 3),
            max_calls=self.spec.threads,
            python=version,
            executable=sys.executable,
        )

    def call(self, invocation: Invocation) -> Iterator[Result]:
        if invocation.method != EXECUTE:
            raise NotFound(f"a Python node has no method {invocation.method!r}")
        arguments = invocation.arguments(ExecuteArguments)
        yield from self._handlers[arguments.node].run(invocation, arguments)

    def close(self) -> None:
        """Finalise the handlers, the last one first."""
        while self._handlers:
            self._handlers.popitem()[1].finalize()
