"""Options without a message of their own: `[type.googleapis.com/google.protobuf.Struct] { ... }`.

Protobuf's text form names the type of every value: `fields { key: "limit" value { number_value: 3 } }`.
Here plain fields are read as well, as in any other message:

    [type.googleapis.com/google.protobuf.Struct] { limit: 3 words: ["a", "b"] window { size: 64 } }

Both give the same values, with the offset of each for error messages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.struct_pb2 import Struct

from ovserve.graph.pbtxt.scanner import Document, Entry, Fault

STRUCT = Struct.DESCRIPTOR.full_name

_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_WORDS = {"true": True, "True": True, "t": True, "false": False, "False": False, "f": False, "null": None}
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)

Path = tuple[str | int, ...]


@dataclass
class Values:
    """A block's values as JSON types, and where each path of it is written."""

    value: dict[str, Any] = field(default_factory=dict)
    offsets: dict[Path, int] = field(default_factory=dict)

    def offset(self, path: Path) -> int:
        """Return the offset of the longest part of the path that is written."""
        while path not in self.offsets:
            path = path[:-1]
        return self.offsets[path]


def is_plain(entry: Entry) -> bool:
    """Return whether a Struct block has plain fields; an empty one counts as such."""
    return not entry.children or not all(e.name == "fields" and e.child("key") for e in entry.children)


def read_struct(entry: Entry, document: Document) -> Values:
    """Read a Struct block of either form. Raises Fault at a name that is not one."""
    values = Values(offsets={(): entry.start})
    values.value = (_plain if is_plain(entry) else _typed)(entry, (), values.offsets, document)
    return values


def read_block(entry: Entry, document: Document) -> Values:
    """Read the block of any message as plain fields."""
    values = Values(offsets={(): entry.start})
    values.value = _plain(entry, (), values.offsets, document)
    return values


def as_struct(values: Values) -> Struct:
    """Return the protobuf message with these values."""
    message = Struct()
    message.update(values.value)
    return message


def _plain(block: Entry, path: Path, offsets: dict[Path, int], document: Document) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, at in document.empty_lists:
        if block.at <= at < block.end and document.path(at)[-1:] == [block]:
            fields[name], offsets[*path, name] = [], at
    for entry in block.children:
        if not _NAME.fullmatch(entry.name):
            raise Fault(f"{entry.name!r} is not a name of a field", entry.start)
        several = entry.listed or sum(e.name == entry.name for e in block.children) > 1
        here: Path = (*path, entry.name)
        offsets.setdefault(here, entry.start)
        if several:
            items = fields.setdefault(entry.name, [])
            here = (*here, len(items))
            offsets[here] = entry.at
        value = _scalar(entry) if entry.value is not None else _plain(entry, here, offsets, document)
        if several:
            items.append(value)
        else:
            fields[entry.name] = value
    return fields


def _scalar(entry: Entry) -> Any:
    text = entry.text
    if (entry.value or "")[:1] in ("'", '"'):
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        digits = text.lstrip("-")
        base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" and len(digits) > 1 else 10
        return int(text, base)
    try:
        return float(text.rstrip("fF") if text[:1].isdigit() or text[:1] in "-." else text)
    except ValueError:
        return text  # a name without quotes, as of an enum


def _typed(block: Entry, path: Path, offsets: dict[Path, int], document: Document) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for entry in block.children:
        key, value = entry.child("key"), entry.child("value")
        if key is not None:
            offsets[*path, key.text] = entry.start
            fields[key.text] = _typed_value(value, (*path, key.text), offsets, document) if value else None
    return fields


def _typed_value(value: Entry, path: Path, offsets: dict[Path, int], document: Document) -> Any:
    for entry in value.children:
        match entry.name:
            case "struct_value":
                return _typed(entry, path, offsets, document)
            case "list_value":
                items = [e for e in entry.children if e.name == "values"]
                for i, item in enumerate(items):
                    offsets[*path, i] = item.start
                return [_typed_value(item, (*path, i), offsets, document) for i, item in enumerate(items)]
            case "number_value":
                number = float(entry.text.rstrip("fF"))
                return int(number) if number.is_integer() else number
            case "string_value" | "bool_value":
                return _scalar(entry)
    return None
