"""Every frame between the server and a sandbox process. One answer per call, in order.

| frame      | direction      | meaning                                                                     |
|------------|----------------|-----------------------------------------------------------------------------|
| `Call`     | to the process | call a function of a module with these arguments                            |
| `Returned` | from it        | the result                                                                  |
| `Text`     | from it        | the result, if it is a text; a long one in several frames                   |
| `Raised`   | from it        | an `OvserveError`, `Undecodable` or `OutOfMemory` that the function raised  |
| `Failed`   | from it        | any other exception: a fault of the function                                |

Values are pickled, because both ends are our own code and exchange our own structs. A client's data is only
ever a value in them, so it cannot choose what is unpickled. A sandbox limits time and memory, not
permissions.
"""

from __future__ import annotations

import msgspec


class Call(msgspec.Struct, frozen=True, tag=True):
    function: str  # module:name
    arguments: bytes
    place: int = -1  # of `body` among the arguments, if one of them is bytes
    body: bytes = b""  # sent on its own, because pickling it would copy it twice; last, see `frame_parts`


class Text(msgspec.Struct, frozen=True, tag=True):
    text: str
    is_end: bool = True


class Returned(msgspec.Struct, frozen=True, tag=True):
    value: bytes = b""  # last, see `frame_parts`


class Raised(msgspec.Struct, frozen=True, tag=True):
    error: bytes


class Failed(msgspec.Struct, frozen=True, tag=True):
    traceback: str


Answer = Text | Returned | Raised | Failed


class Undecodable(Exception):
    """Input that cannot be used; the text says why, for the client."""


class OutOfMemory(Exception):
    """The call needs more memory than its process may have."""
