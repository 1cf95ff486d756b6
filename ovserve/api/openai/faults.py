"""Explains what is wrong with a body: errors that name the field and the value. Used by `body.py`.

msgspec gives the JSON path of the first fault. The value is looked up by that path, and so is what the type
says of it: the path of a member of a map does not name the member, and an enum's fault not its values.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ovserve.api.openai.shapes import Step, shape_of
from ovserve.errors import InvalidArgument, shortened

NOTHING = object()

_FAULT = re.compile(r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`(?P<path>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_MEMBER = "..."  # msgspec's word for some member of a map


def explain(fault: str, body: bytes, type_: Any) -> InvalidArgument:
    """The error for msgspec's text."""
    match = _FAULT.fullmatch(fault)
    assert match is not None, "the pattern matches any text"
    what, steps = match["what"], steps_of(match["path"] or "")
    root = _decoded(body)
    if _MEMBER in steps or match["key"]:
        steps = _with_member(steps, fault, root, type_)
    if match["key"]:
        *steps, key = steps
        param = field_path(steps)
        return InvalidArgument(f"{param}: a key is wrong: {_lower(what)}, got {show(key)}", param=param)
    param = field_path(steps)
    if missing := re.fullmatch(r"Object missing required field `(.*)`", what):
        name = f"{param}.{missing[1]}" if param else missing[1]
        return InvalidArgument(f"{name}: required, but missing", param=name)
    value = look_up(root, steps)
    if choices := [c for c in shape_of(type_).choices_at(steps) if c is not None]:
        what = f"expected one of {', '.join(map(str, choices))}"
    suffix = "" if value is NOTHING else f", got {show(value)}"
    what = without_type(what) if suffix else what
    return InvalidArgument(f"{param or 'body'}: {_lower(what)}{suffix}", param=param or None)


def without_type(what: str) -> str:
    """Return msgspec's text without the type that it found, for an error that shows the value instead."""
    return re.sub(r", got `[^`]*`$", "", what)


def steps_of(path: str) -> list[Step]:
    """Split a path like `$.messages[0].role`; a member of a map without a name is "..."."""
    return [name or (int(at) if at.isdigit() else at) for name, at in _STEP.findall(path)]


def field_path(steps: list[Step]) -> str:
    """Return a field's name as errors show it."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{shortened(step)}" for step in steps)
    return text.removeprefix(".")


def look_up(value: Any, steps: list[Step]) -> Any:
    """NOTHING where there is none."""
    for step in steps:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return NOTHING
    return value


def shown_value(body: bytes, param: str) -> str:
    """The beginning of the value an error is about, by its `param`; null when there is none."""
    value = look_up(_decoded(body), steps_of(f".{param}"))
    if isinstance(value, str):
        return shortened(value)
    return show(None if value is NOTHING else value)


def show(value: Any) -> str:
    return shortened(msgspec.json.encode(value).decode())


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):  # the parts that no struct knows need not be sound
        return NOTHING


def _with_member(steps: list[Step], fault: str, root: Any, type_: Any) -> list[Step]:
    """The steps with the name of the member at fault. The first one is found by halves: what is up to it has
    the fault, what is before it does not."""
    at = steps.index(_MEMBER) if _MEMBER in steps else len(steps)
    members = look_up(root, steps[:at])
    if not isinstance(members, dict):
        return steps[:at]
    names, values = list(members), dict(members)
    low, high = 1, len(names)
    while low < high:
        middle = (low + high) // 2
        members.clear()
        members.update((name, values[name]) for name in names[:middle])
        low, high = (low, middle) if _has(fault, root, type_) else (middle + 1, high)
    members.clear()
    members.update(values)
    return [*steps[:at], names[low - 1], *steps[at + 1 :]]


def _has(fault: str, root: Any, type_: Any) -> bool:
    try:
        msgspec.convert(root, type_)
    except msgspec.ValidationError as exc:
        return str(exc) == fault
    return False


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
