"""Decode a JSON body into a struct with errors that name the field and the value, and note unknown fields.

Used by every endpoint. msgspec gives the JSON path of the first fault; the value is looked up by that path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from ovserve.errors import InvalidArgument, UnsupportedParameter

T = TypeVar("T", bound=msgspec.Struct)

MAX_SHOWN = 80  # characters of an offending value repeated in an error

_FAULT = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_fields(body: bytes) -> dict[str, msgspec.Raw]:
    """The body's top-level fields, undecoded. Raises InvalidArgument unless it is a JSON object."""
    try:
        return _fields.decode(body)
    except msgspec.ValidationError:
        raise InvalidArgument("the body is not a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidArgument(f"the body is not valid JSON: {exc}") from None
    except RecursionError:  # msgspec counts nesting against the interpreter's limit, about 1,000
        raise InvalidArgument("the body nests too deeply") from None


class _Model(msgspec.Struct):
    model: str


_model = msgspec.json.Decoder(_Model)


def peek_model(body: bytes) -> str:
    """The model a body names, without decoding the rest. Raises InvalidArgument."""
    return decode_body(body, _model)[0].model


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T]) -> tuple[T, dict[str, msgspec.Raw]]:
    """The struct, and the top-level fields it does not know."""
    fields = decode_fields(body)
    try:
        decoded = decoder.decode(body)
    except msgspec.ValidationError as exc:
        raise _explain(str(exc), body) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidArgument(f"the body is not valid JSON: {exc}") from None
    except RecursionError:  # msgspec counts nesting against the interpreter's limit, about 1,000
        raise InvalidArgument("the body nests too deeply") from None
    for name in decoded.__struct_encode_fields__:
        fields.pop(name, None)
    return decoded, fields


def refuse_unsupported(fields: dict[str, msgspec.Raw], neutral: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse known fields that cannot be honoured, unless null or at a value that asks for nothing.

    Those are removed from `fields`; what stays there is unknown and is reported to the client.
    """
    for name in [n for n in fields if n in neutral]:
        value = msgspec.json.decode(fields.pop(name))
        if value is not None and not any(value == n and type(value) is type(n) for n in neutral[name]):
            raise UnsupportedParameter(f"{name}: {_show(value)} is not supported by this server", param=name)


def _explain(fault: str, body: bytes) -> InvalidArgument:
    match = _FAULT.fullmatch(fault)
    assert match is not None, "the pattern matches any text"
    what, path = match["what"], match["path"] or "$"
    param = path.removeprefix("$").removeprefix(".")
    if missing := re.fullmatch(r"Object missing required field `(.*)`", what):
        name = f"{param}.{missing[1]}" if param else missing[1]
        return InvalidArgument(f"{name}: required, but missing", param=name)
    what = what[:1].lower() + what[1:]
    value = _lookup(msgspec.json.decode(body), path)
    got = (
        ""
        if value is _NOTHING or (what.startswith("invalid") and ", got" in what)
        else f", got {_show(value)}"
    )
    what = re.sub(r", got `[^`]*`$", "", what) if got else what
    return InvalidArgument(f"{param or 'body'}: {what}{got}", param=param or None)


_NOTHING = object()


def _lookup(value: Any, path: str) -> Any:
    for name, index in _STEP.findall(path):
        try:
            value = value[name] if name else value[int(index)]
        except (KeyError, IndexError, TypeError):
            return _NOTHING
    return value


def _show(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."
