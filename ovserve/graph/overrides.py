"""Check the methods and options of a calculator class against those of the classes it is made of.

A misspelt method, a missing parameter or a coroutine where none is awaited would fail each request. They are
load errors instead, because `@calculator` calls `check_class`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from google.protobuf.message import Message

from ovserve.graph.calculator import Calculator, Input

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
        others = [n for n, v in vars(cls).items() if inspect.isfunction(v) and not _overrides_base(cls, n)]
        near = difflib.get_close_matches(name, others, n=1)
        hint = f"; {near[0]}() is not one that the server calls" if near else ""
        text = f"{name}{inspect.signature(getattr(cls, name))}".replace("'", "")
        raise TypeError(f"{cls.__name__} has to define {text}{hint}")


def _overrides_base(cls: type[Calculator], name: str) -> bool:
    return any(name in vars(base) for base in cls.__mro__[1:])


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
