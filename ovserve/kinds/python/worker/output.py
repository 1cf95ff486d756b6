"""Prefixes what handlers print, line by line, with the names of graph and node.

The process's output is a pipe to the server's log. Lines of threads that a handler starts itself, and of
native code, have no node's name.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_node: ContextVar[str] = ContextVar("node", default="")
LONGEST = 16 << 10  # characters of a line that is not ended


class NodeOutput(io.TextIOBase):
    """Replaces `sys.stdout` and `sys.stderr`. A line is written when it is complete, in one piece."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, graph: str, inner: Any) -> None:
        self.buffer = inner.buffer
        self._graph = graph
        self._descriptor = inner.fileno()
        self._parts = threading.local()  # a thread's line that is not ended

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"expected str, got {type(text).__name__}")
        *lines, rest = (getattr(self._parts, "text", "") + text).split("\n")
        if len(rest) > LONGEST:
            lines, rest = [*lines, rest], ""
        self._parts.text = rest
        self._emit(lines)
        return len(text)

    def end_line(self) -> None:
        """Write this thread's line, although it is not ended."""
        if rest := getattr(self._parts, "text", ""):
            self._parts.text = ""
            self._emit([rest])

    def _emit(self, lines: list[str]) -> None:
        node = _node.get()
        mark = f"{self._graph}/{node}" if node else self._graph
        # Of a progress bar only its last state counts.
        texts = [f"{mark}: {line.rstrip(chr(13)).rpartition(chr(13))[2]}\n" for line in lines]
        data = "".join(texts).encode(self.encoding, self.errors)
        while data:
            data = data[os.write(self._descriptor, data) :]

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._descriptor)


def mark_output(graph: str) -> None:
    sys.stdout = NodeOutput(graph, sys.__stdout__)
    sys.stderr = NodeOutput(graph, sys.__stderr__)


@contextmanager
def printing_as(node: str) -> Iterator[None]:
    """Inside, this thread's lines have the node's name."""
    token = _node.set(node)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, NodeOutput):
                stream.end_line()
        _node.reset(token)
