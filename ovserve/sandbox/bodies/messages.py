"""Every frame between the server and a process that decodes bodies. One answer per call, in order.

| frame      | direction      | meaning                                                |
|------------|----------------|--------------------------------------------------------|
| `Call`     | to the process | call a function of ovserve with these arguments        |
| `Returned` | from it        | its result                                             |
| `Raised`   | from it        | an error for the client                                |
| `Broken`   | from it        | it needs too much memory, or has an internal fault     |

Arguments and results are pickled, because both ends are our own code and exchange our own structs. A client's
data is only ever a value in them, so it cannot choose what is unpickled.
"""

from __future__ import annotations

from enum import Enum

import msgspec


class Body(Enum):
    """An argument that is sent on its own, because pickling it would copy it twice."""

    HERE = 0


class Call(msgspec.Struct, frozen=True, tag=True):
    function: str  # module:name
    arguments: bytes
    body: bytes = b""  # takes the place of the argument that is `Body.HERE`; last, see `frame_head`


class Returned(msgspec.Struct, frozen=True, tag=True):
    value: bytes


class Raised(msgspec.Struct, frozen=True, tag=True):
    error: bytes


class Broken(msgspec.Struct, frozen=True, tag=True):
    memory: bool
    why: str


Answer = Returned | Raised | Broken
