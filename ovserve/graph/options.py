"""Typed options of a calculator: a msgspec struct, filled from the node's options when the graph is loaded.

    class GuardOptions(msgspec.Struct, frozen=True):
        words: tuple[str, ...]
        limit: Annotated[int, msgspec.Meta(ge=1)] = 3

    class Guard(Calculator):
        options_type = GuardOptions

The values stand in the graph as `[type.googleapis.com/google.protobuf.Struct] { words: "a" limit: 5 }`, or in
a message of the struct's name that a `.proto` file next to the graph defines. Types, ranges and required
fields are those of the struct; what it has no field for is an error. So is what its `__post_init__` rejects.
"""

from __future__ import annotations

import contextlib
import enum
import inspect
import re
import types
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Literal, TypeVar

import msgspec
from google.protobuf.message import Message

from ovserve.errors import LoadError
from ovserve.graph.calculator import Calculator, Input
from ovserve.graph.node import Node
from ovserve.graph.pbtxt.scanner import Fault
from ovserve.graph.pbtxt.schema import STRUCT, Path, Values

S = TypeVar("S", bound=msgspec.Struct)

_AT = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]|(?P<any>\[\.\.\.\])")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]+)`")
_LISTS = (list, tuple, set, frozenset)


def struct_options(node: Node, type_: type[S]) -> S:
    """Return the node's options as `type_`; its defaults where the node has none. Raises LoadError."""
    try:
        values = node.config.values(node.position, option_message(node, type_))
    except Fault as fault:
        raise _error(node, fault.message, (), fault.offset) from None
    block = values or Values(offsets={(): -1})
    try:
        value = _listed(block.value, type_)
        _fits(type_)
    except (TypeError, NameError) as error:
        raise node.error(f"{type_.__name__} cannot be filled from a graph: {error}", "node_options") from None
    for path, name, owner in _unknown(value, type_, ()):
        names = list(_fields(owner))
        near = get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(names) or 'none'}"
        text = f"{owner.__name__} has no such field{hint}"
        raise _error(node, text, (*path, name), block.offset((*path, name)))
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        path, text = _explained(str(error), value, type_)
        raise _error(node, text, path, block.offset(path)) from None


def option_message(node: Node, type_: type[msgspec.Struct]) -> str:
    """Return the full name of the message that holds the options: Struct, or one that has the type's name."""
    type_names = node.config.option_types(node.position)
    own = [name for name in type_names if name.rpartition(".")[2] == type_.__name__]
    return own[0] if own else STRUCT


def _error(node: Node, text: str, path: Path, offset: int) -> LoadError:
    field = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
    return node.error(text, field or "node_options", offset=offset)


def _explained(message: str, value: Any, type_: type[msgspec.Struct]) -> tuple[Path, str]:
    """Return where a msgspec error is, and its text with the value and what is known."""
    path: Path = ()
    if at := _AT.search(message):
        message = message[: at.start()]
        for step in _STEP.finditer(at["path"]):
            if step["any"]:  # a value of a mapping, whose key msgspec does not report
                break
            path = (*path, step["name"] or int(step["index"]))
    if missing := _MISSING.fullmatch(message):
        return (*path, missing["name"]), f"required by {type_.__name__}, but missing"
    inner = value
    for key in path:
        inner = inner[key]
    text = message[:1].lower() + message[1:].replace("`", "")
    choices = _choices(_type_at(type_, path))
    if "invalid enum value" in text and choices:
        near = get_close_matches(str(inner), choices, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        return path, f"expected one of {', '.join(choices)}, got {inner!r}{hint}"
    if not path or isinstance(inner, dict | list):
        return path, text
    return path, f"{text.partition(', got')[0]}, got {inner!r}"


# ---- the author's types


def _fits(type_: Any) -> None:
    """Raise TypeError or NameError for annotations that msgspec cannot convert any value to."""
    with contextlib.suppress(msgspec.ValidationError):
        msgspec.convert({}, type_)


def _fields(type_: Any) -> dict[str, Any]:
    return {f.encode_name: f.type for f in msgspec.structs.fields(type_)}


def _members(type_: Any) -> Iterator[Any]:
    """Yield the type's alternatives: of a union each, of an annotated type the type."""
    origin = typing.get_origin(type_)
    if origin is typing.Annotated:
        yield from _members(typing.get_args(type_)[0])
    elif origin in (typing.Union, types.UnionType):
        for each in typing.get_args(type_):
            yield from _members(each)
    else:
        yield type_


def _struct_of(type_: Any) -> Any:
    structs = (t for t in _members(type_) if isinstance(t, type) and issubclass(t, msgspec.Struct))
    return next(structs, None)


def _item_of(type_: Any) -> Any:
    """Return the type of a list's items; None for a type that is not only a list."""
    members = [t for t in _members(type_) if t is not type(None)]
    lists = [t for t in members if t in _LISTS or typing.get_origin(t) in _LISTS]
    if not lists or len(lists) < len(members):
        return None
    arguments = typing.get_args(lists[0])
    return arguments[0] if arguments else Any


def _listed(value: Any, type_: Any) -> Any:
    """Return the values with single ones in a list where the type is a list: `words: "a"` is one word."""
    if (item := _item_of(type_)) is not None:
        return [_listed(each, item) for each in (value if isinstance(value, list) else [value])]
    if isinstance(value, Mapping) and (struct := _struct_of(type_)) is not None:
        fields = _fields(struct)
        return {name: _listed(each, fields.get(name, Any)) for name, each in value.items()}
    return value


def _unknown(value: Any, type_: Any, path: Path) -> Iterator[tuple[Path, str, type[msgspec.Struct]]]:
    """Yield where a field is given that the struct there does not have, its name, and that struct."""
    if isinstance(value, list) and (item := _item_of(type_)) is not None:
        for i, each in enumerate(value):
            yield from _unknown(each, item, (*path, i))
    elif isinstance(value, Mapping) and (struct := _struct_of(type_)) is not None:
        fields = _fields(struct)
        for name, each in value.items():
            if name not in fields:
                yield path, name, struct
            else:
                yield from _unknown(each, fields[name], (*path, name))


def _type_at(type_: Any, path: Path) -> Any:
    for step in path:
        struct = _struct_of(type_)
        type_ = (
            (_item_of(type_) or Any)
            if isinstance(step, int)
            else _fields(struct).get(step)
            if struct
            else Any
        )
    return type_


def _choices(type_: Any) -> list[str]:
    choices: list[str] = []
    for each in _members(type_):
        if typing.get_origin(each) is Literal:
            choices += [str(value) for value in typing.get_args(each)]
        elif isinstance(each, type) and issubclass(each, enum.Enum):
            choices += [str(member.value) for member in each]
    return choices


# Check the methods and options of a calculator class against those of the classes it is made of.
#
# A misspelt method, a missing parameter or a coroutine where none is awaited would fail each request. They
# are load errors instead, because `@calculator` calls `check_class`.


T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__must_override__"
_EITHER = ("open", "process", "close", "load", "unload")  # plain functions or coroutines


def must_override(method: F) -> F:
    """Mark a method of a base class that each calculator made of it has to define."""
    setattr(method, _MARK, True)
    return method


async def awaited(result: T | Awaitable[T]) -> T:
    """Return the result of an author's method, which may be a coroutine or a plain function."""
    return await result if inspect.isawaitable(result) else result


def check_class(cls: type[Calculator]) -> None:
    """Raise TypeError, naming class and member, for a class whose requests would all fail."""
    options: Any = cls.options_type
    if options is not None and not (
        isinstance(options, type) and issubclass(options, msgspec.Struct | Message)
    ):
        text = getattr(options, "__name__", repr(options))
        raise TypeError(f"{cls.__name__}.options_type: {text} is not a class made of msgspec.Struct")
    for name, own in vars(cls).items():
        for base in cls.__mro__[1:]:
            if not name.startswith("_") and issubclass(base, Calculator) and name in vars(base):
                _check_member(cls, name, own, vars(base)[name])
                break
    missing = [name for name in dir(cls) if getattr(getattr(cls, name), _MARK, False)]
    if cls.process is Calculator.process and any(isinstance(v, Input) for v in vars(cls).values()):
        missing.append("process")
    for name in missing:
        base_names = {name for base in cls.__mro__[1:] for name in vars(base)}
        others = [n for n, v in vars(cls).items() if inspect.isfunction(v) and n not in base_names]
        near = get_close_matches(name, others, n=1)
        hint = f"; {near[0]}() is not one that the server calls" if near else ""
        text = f"{name}{inspect.signature(getattr(cls, name))}".replace("'", "")
        raise TypeError(f"{cls.__name__} has to define {text}{hint}")


def _check_member(cls: type[Calculator], name: str, own: Any, default: Any) -> None:
    if type(default) in (int, str, bool):
        if not hasattr(own, "__get__") and not isinstance(own, type(default)):
            raise TypeError(f"{cls.__name__}.{name}: expected {type(default).__name__}, got {own!r}")
        return
    function, called = getattr(own, "__func__", own), getattr(default, "__func__", default)
    if not (inspect.isfunction(function) and inspect.isfunction(called)):
        return
    parameters = list(inspect.signature(called).parameters)
    signature = inspect.signature(function)
    try:
        signature.bind(*parameters)
    except TypeError:
        takes = f"is called with ({', '.join(parameters)}), and takes ({', '.join(signature.parameters)})"
        raise TypeError(f"{cls.__name__}.{name} {takes}") from None
    if name in _EITHER or "Awaitable" in str(inspect.signature(called).return_annotation):
        return
    if inspect.iscoroutinefunction(function) and not inspect.iscoroutinefunction(called):
        raise TypeError(f"{cls.__name__}.{name} is not awaited: write def instead of async def")
    if inspect.iscoroutinefunction(called) and not inspect.iscoroutinefunction(function):
        raise TypeError(f"{cls.__name__}.{name} is awaited: write async def instead of def")
