"""Lines that a process of a test writes, up to the moment in which they are asked for."""

from __future__ import annotations

import os
import select
import threading


class Lines:
    """The lines that came through a pipe.

    A thread keeps the pipe from filling. Who asks reads what is in it first: the thread alone would be as late as
    the machine is busy, and what a server logged before it answered would be missing for a moment.
    """

    def __init__(self, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self._pipe, self._lock = pipe, threading.Lock()
        self._whole: list[str] = []
        self._part = b""
        self._over = False
        self._poll = select.poll()  # not `select`, which takes no number from 1024 on
        self._poll.register(pipe, select.POLLIN)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def all(self) -> list[str]:
        """All whole lines that were written, and after the end what follows them."""
        with self._lock:
            while not self._over:
                try:
                    data = os.read(self._pipe, 1 << 16)
                except BlockingIOError:
                    break
                self._over = not data
                *lines, self._part = (self._part + data).split(b"\n")
                self._whole += [f"{line.decode(errors='replace')}\n" for line in lines]
                if self._over and self._part:
                    self._whole.append(self._part.decode(errors="replace"))
            return [*self._whole]

    def end(self) -> None:
        """Read what is left; then the pipe can be closed. A process that has outlived its parent may still have it."""
        self.all()
        with self._lock:
            self._over = True
        self._thread.join()

    def wait(self, seconds: float) -> None:
        """Until there may be more. At the end there is at once."""
        waiting = select.poll()  # one of these is for one thread
        waiting.register(self._pipe, select.POLLIN)
        waiting.poll(seconds * 1000)

    def _follow(self) -> None:
        while not self._over:
            if self._poll.poll(200):
                self.all()
