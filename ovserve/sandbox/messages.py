"""Every frame between the server and a sandbox process. One answer per call, in order.

| frame      | direction      | meaning                                                                     |
|------------|----------------|-----------------------------------------------------------------------------|
| `Call`     | to the process | call a function of a module with these arguments                            |
| `Returned` | from it        | the result                                                                  |
| `Text`     | from it        | the result, if it is a text; a long one in several frames                   |
| `Raised`   | from it        | an `OvserveError`, `Undecodable` or `OutOfMemory` that the function raised  |
| `Failed`   | from it        | any other exception: a fault of the function                                |

Arguments are pickled: the server made them. An answer cannot name code, because its process has read
what a client sent, and a fault in native code may have given that control of it. An error is the name
of its class and plain values. The result of a decoder of images, audio or documents, and of a template, is
msgpack of a type that the caller names. Bodies become many types, some of which msgpack cannot hold; they are
pickled, and only classes of plain data are admitted (`DataUnpickler`), of modules that the server imported.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from ovserve.errors import OvserveError, from_kind

OWN_PACKAGE = "ovserve"
# What pickled structs are made with, besides their classes.
MAKERS = frozenset(
    [
        ("msgspec", "Raw"),
        ("msgspec", "UNSET"),
        ("msgspec._core", "UNSET"),
        ("msgspec._utils", "rebuild"),
        ("ovserve.api.kserve.tensor", "tensor_of"),
    ]
)


class Call(msgspec.Struct, frozen=True, tag=True):
    function: str  # module:name
    arguments: bytes
    typed: bool = False  # the result is to be msgpack
    place: int = -1  # of `body` among the arguments, if one of them is bytes
    body: bytes = b""  # sent on its own, because pickling it would copy it twice; last, see `frame_parts`


class Text(msgspec.Struct, frozen=True, tag=True):
    text: str
    is_end: bool = True


class Returned(msgspec.Struct, frozen=True, tag=True):
    value: bytes = b""  # last, see `frame_parts`


class Raised(msgspec.Struct, frozen=True, tag=True):
    name: str  # of the class
    kind: str
    message: str
    fields: dict[str, Any] = {}  # the error's attributes

    @classmethod
    def of(cls, error: Exception) -> Raised:
        fields = {name: _plain(value) for name, value in vars(error).items()}
        kind = error.kind if isinstance(error, OvserveError) else ""
        return cls(type(error).__name__, kind, _plain(str(error)), fields)

    @property
    def error(self) -> Exception:
        if (class_ := _errors().get(self.name)) is None:
            return from_kind(self.kind, self.message)
        error = class_.__new__(class_, self.message)
        error.__dict__.update(self.fields)
        return error


class Failed(msgspec.Struct, frozen=True, tag=True):
    traceback: str


Answer = Text | Returned | Raised | Failed


class Undecodable(Exception):
    """Input that cannot be used; the text says why, for the client."""


class OutOfMemory(Exception):
    """The call needs more memory than its process may have."""


def _plain(value: Any) -> Any:
    """Return a value that msgpack can hold; an error must not fail for what it says."""
    try:
        msgspec.msgpack.encode(value)
    except (UnicodeEncodeError, OverflowError, TypeError, msgspec.MsgspecError):
        if isinstance(value, dict):
            return {_plain(key): _plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [*map(_plain, value)]
        return str(value).encode("utf-8", "backslashreplace").decode()
    return value


@cache
def _errors() -> dict[str, type[Exception]]:
    classes: list[type[Exception]] = [Undecodable, OutOfMemory, *_subclasses(OvserveError)]
    return {one.__name__: one for one in classes}


def _subclasses(of: type[Exception]) -> Iterator[type[Exception]]:
    yield of
    for one in of.__subclasses__():
        if one.__module__ == of.__module__:
            yield from _subclasses(one)


class DataUnpickler(pickle.Unpickler):
    """Reads pickled data of this package and of `package`. Raises UnpicklingError for anything else."""

    def __init__(self, data: bytes, package: str) -> None:
        super().__init__(io.BytesIO(data))
        self._packages = OWN_PACKAGE, package

    def find_class(self, module: str, name: str) -> Any:
        value = getattr(sys.modules.get(module), name, None)
        is_ours = module.partition(".")[0] in self._packages and is_data(value)
        if not is_ours and (module, name) not in MAKERS:
            raise pickle.UnpicklingError(f"{module}.{name} is no class of plain data")
        return value


def is_data(value: Any) -> bool:
    """Return whether it is a class of plain data: to make an object of it runs no other code."""
    if not isinstance(value, type):
        return False
    is_named_tuple = issubclass(value, tuple) and hasattr(value, "_fields")
    return (
        issubclass(value, msgspec.Struct | OvserveError) or dataclasses.is_dataclass(value) or is_named_tuple
    )


@cache
def typed_decoder(type_: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(type_)
