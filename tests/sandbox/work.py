"""Functions that the tests call in sandbox processes. What is imported here counts as time of the first call."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time

from ovserve.engine.protocol.frames import MAX_FRAME
from ovserve.errors import UnsupportedParameter
from ovserve.sandbox.messages import Undecodable


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


def hang_in(folder: str) -> int:
    """The first process to come here does not come back."""
    pid = os.getpid()
    alone = not os.listdir(folder)
    open(os.path.join(folder, str(pid)), "w").close()
    if alone:
        time.sleep(59)
    return pid


def size_of(number: int, first: bytes, second: bytes) -> tuple[int, int, bytes]:
    return number, len(first), second


def die() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def initialize() -> None:
    """Import nothing."""


def reject() -> None:
    raise Undecodable("not like this")


def text(length: int) -> str:
    return "é" * length


def kept_templates() -> int:
    return len(vars(sys.modules["ovserve.sandbox.rendering"])["_compiled"])


class Exploit:
    """Whoever unpickles it runs code: it makes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (self.path, "w")


@dataclasses.dataclass(frozen=True)
class Fact:
    name: str
    sizes: tuple[int, ...] = ()


def exploit(path: str) -> Exploit:
    return Exploit(path)


def exploit_by_error(path: str) -> None:
    error = UnsupportedParameter("no")
    error.details = {"value": Exploit(path)}
    raise error


def fact(name: str) -> Fact:
    return Fact(name, (1, 2))


def refuse_oddly() -> None:
    error = UnsupportedParameter("half: \ud800")
    error.details = {"value": 2**70}
    raise error


def too_much() -> bytes:
    return bytes(MAX_FRAME)
