"""What the tests have a body process do. Without imports that take long: they count as time of the first call."""

from __future__ import annotations

import os
import signal
import time

from ovserve.errors import UnsupportedParameter


def where() -> int:
    return os.getpid()


def refuse() -> None:
    error = UnsupportedParameter("tools[3]: no", param="tools[3]")
    error.details = {"value": 7}
    raise error


def fail() -> None:
    raise ZeroDivisionError("a fault of ours")


def fill(size: int) -> int:
    return len(bytearray(size))


def hang(seconds: float) -> None:
    time.sleep(seconds)


def die() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)
