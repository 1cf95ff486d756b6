"""Ends calls of handlers that take too long.

At its deadline a call ends for its client, and an exception is raised in its thread, which ends code that
runs in Python. A thread that stays, in native code or asleep, keeps its place, so after a while the process
ends itself and the server starts another.
"""

from __future__ import annotations

import ctypes
import faulthandler
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

GRACE_SECONDS = 5.0  # seconds between the exception and the end of the process
EXIT_STUCK = 75  # EX_TEMPFAIL


class CallTimeout(BaseException):
    """Raised in the thread of a handler. It is not an Exception, so that handlers do not catch it."""


@dataclass(eq=False)
class _Running:
    node: str
    thread: int
    seconds: float
    at: float
    expire: Callable[[], None]
    raised: bool = False


class Deadlines:
    def __init__(self, grace: float = GRACE_SECONDS) -> None:
        self._grace = grace
        self._running: set[_Running] = set()
        self._changed = threading.Condition()
        self._watcher: threading.Thread | None = None
        self._next = math.inf  # when the watcher looks again; a thread that is woken takes the others' time

    @contextmanager
    def within(self, seconds: float, node: str, expire: Callable[[], None]) -> Iterator[None]:
        """Raise CallTimeout inside after `seconds`, after a call of `expire` on another thread; 0: never."""
        if not seconds:
            yield
            return
        call = _Running(node, threading.get_ident(), seconds, time.monotonic() + seconds, expire)
        with self._changed:
            self._running.add(call)
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="deadlines", daemon=True)
                self._watcher.start()
            if call.at < self._next:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._running.discard(call)
                if call.raised:
                    _raise_in(call.thread, None)  # it may not have arrived yet, and must not arrive later

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for call in [c for c in self._running if c.at <= now]:
                    if call.raised:
                        _end(call, self._grace)
                    call.raised, call.at = True, now + self._grace
                    call.expire()
                    _raise_in(call.thread, CallTimeout)
                self._next = min((c.at for c in self._running), default=math.inf)
                self._changed.wait(None if self._next == math.inf else max(0.0, self._next - now))


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise an exception in a thread, at its next instruction of Python; None takes it back."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if error is None else ctypes.py_object(error)
    )


def _end(call: _Running, grace: float) -> None:
    text = (
        f"node {call.node!r}: a call did not end {grace:g} s after its timeout of {call.seconds:g} s; ending"
    )
    os.write(2, f"{text} the process\n".encode())
    faulthandler.dump_traceback(2, all_threads=True)
    os._exit(EXIT_STUCK)
