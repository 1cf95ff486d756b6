r"""Whole JSON texts, made ready to send.

The text passes through unchanged (big integers, number forms, key order), except that raw control characters
and backslashes that begin no escape (`C:\path`) are escaped in strings: models write them, strict clients
cannot read them.
"""

from __future__ import annotations

import json
import re

JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SPECIAL = re.compile(r"[\\\x00-\x1f]")
_PIECE = re.compile(r"""\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|('))?|["\x00-\x1f]""")


def as_json(text: str, first: str = "") -> str | None:
    """Return the text ready to send if it is one JSON value (beginning with a character of `first`, if
    given)."""
    stripped = text.strip(" \t\r\n")
    if not stripped or (first and stripped[0] not in first):
        return None
    if _SPECIAL.search(stripped):
        stripped = _escaped(stripped)
    try:
        json.loads(stripped, parse_int=len, parse_float=len, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return stripped


def _escaped(text: str) -> str:
    """Return JSON with the escapes of its strings made good."""
    inside = False

    def piece(match: re.Match[str]) -> str:
        nonlocal inside
        char = match[0]
        if char == '"':
            inside = not inside
        if char == '"' or not inside or match[1]:
            return char
        return (match[2] or "\\\\") if char[0] == "\\" else json.dumps(char)[1:-1]

    return _PIECE.sub(piece, text)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is Python's")


def quote(text: str) -> str:
    """Return a JSON string. Non-ASCII stays readable; single surrogates, which no encoder accepts, are
    escaped."""
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted if _encodable(quoted) else json.dumps(text)


def unquote(quoted: str) -> str:
    """Return the text of a JSON string that is valid."""
    text = json.loads(quoted)
    assert isinstance(text, str), "the caller checked it"
    return text if _encodable(text) else text.encode("utf-8", "replace").decode()


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
