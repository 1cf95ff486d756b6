"""Read `.proto` files next to a graph: the option messages of its own calculators, without protoc.

Messages, enums, oneofs, maps and defaults are read. Options, reserved numbers and `extend` blocks, by which
MediaPipe attaches options to its CalculatorOptions, are skipped. Services and imports of other files than
protobuf's own are errors: a graph's options need neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from google.protobuf import any_pb2, struct_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto
from google.protobuf.descriptor_pb2 import FileDescriptorProto as File
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from ovserve.errors import LoadError
from ovserve.protos.pool import POOL

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/) | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<word>[\w.+-]+) | (?P<mark>[{}<>\[\]()=;,:/]) | (?P<bad>.)""",
    re.VERBOSE | re.DOTALL,
)
_SCALARS = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM")
}
_LABELS: dict[str, Any] = {"optional": 1, "required": 2, "repeated": 3}
_KNOWN = {file.DESCRIPTOR.name: file.DESCRIPTOR for file in (any_pb2, struct_pb2, wrappers_pb2)}
_IGNORED = re.compile(r"mediapipe/framework/calculator(_options)?\.proto")


class Messages:
    """The server's messages and those of some files; what protobuf's parser asks of a descriptor pool."""

    def __init__(self, files: Iterable[Path] = ()) -> None:
        self.names: list[str] = []  # of the files' messages
        self._own: DescriptorPool | None = None
        for path in files:
            if self._own is None:
                self._own = DescriptorPool()
                for file in _KNOWN.values():
                    self._own.AddSerializedFile(file.serialized_pb)
            self._add(self._own, path)

    def FindMessageTypeByName(self, name: str) -> Any:
        try:
            return POOL.FindMessageTypeByName(name)
        except KeyError:
            if name not in self.names or self._own is None:
                raise
            return self._own.FindMessageTypeByName(name)

    def FindExtensionByName(self, name: str) -> Any:
        return POOL.FindExtensionByName(name)

    def FindAllExtensions(self, message: Any) -> Any:
        return POOL.FindAllExtensions(message)

    def unpacked(self, packed: any_pb2.Any) -> Message:
        """Return the message of an Any that `parse_graph` has checked."""
        message = GetMessageClass(self.FindMessageTypeByName(packed.TypeName()))()
        packed.Unpack(message)
        return message

    def _add(self, pool: DescriptorPool, path: Path) -> None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise LoadError(f"cannot be read: {error}", file=str(path)) from error
        file = _Parser(text, path).file()
        try:
            pool.AddSerializedFile(file.SerializeToString())
            pool.FindFileByName(file.name)
        except (TypeError, ValueError, KeyError) as error:
            raise LoadError(f"not a valid .proto file: {error}", file=str(path)) from error
        package = f"{file.package}." if file.package else ""
        self.names += [package + message.name for message in file.message_type]


def plain_fields(message: Message, fields: dict[str, Any] | None) -> dict[str, Any]:
    """Return a message as plain values: the fields that its text has (None: those that are set), and
    explicit defaults. The text says which were written, and the digits of a float; protobuf the rest."""
    if fields is None:
        fields = {field.name: None for field, _ in message.ListFields()}
    plain = dict(fields)  # with options of an older release, which the message lacks
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.name in fields:
            plain[field.name] = _plain_field(field, value, fields[field.name])
        elif field.has_default_value:
            plain[field.name] = _plain(field, value, None)
    return plain


def _plain_field(field: Any, value: Any, text: Any) -> Any:
    if not field.is_repeated:
        return _plain(field, value, text)
    items = text if isinstance(text, list) else [text] * len(value)
    if field.message_type is None or not field.message_type.GetOptions().map_entry:
        return [_plain(field, *pair) for pair in zip(value, items, strict=True)]
    of = field.message_type.fields_by_name
    texts = {entry.get("key", of["key"].default_value): entry.get("value") for entry in items if entry}
    return {key: _plain(of["value"], value[key], texts.get(key)) for key in value}


def _plain(field: Any, value: Any, text: Any) -> Any:
    if field.message_type is not None:
        return plain_fields(value, text)
    if field.enum_type is not None:
        member = field.enum_type.values_by_number.get(value)
        return value if member is None else member.name  # proto3 takes any number
    return float(text) if isinstance(value, float) and isinstance(text, int | float) else value


class _Parser:
    def __init__(self, text: str, path: Path) -> None:
        self._path, self._text = path, text
        self._tokens: list[tuple[str, int]] = []  # and offsets
        self._at = 0
        for match in _TOKEN.finditer(text):
            if match.lastgroup == "bad":
                raise self._error(f"{match[0]!r} is not expected here", match.start())
            if match.lastgroup != "space":
                self._tokens.append((match[0], match.start()))

    def file(self) -> File:
        file = File(name=self._path.name, syntax="proto2")
        while (word := self._peek()) is not None:
            match word:
                case "syntax":
                    self._skip("syntax", "=")
                    file.syntax = self._string()
                    self._skip(";")
                case "package":
                    self._skip("package")
                    file.package = self._take()
                    self._skip(";")
                case "import":
                    self._import(file)
                case "message":
                    self._message(file.message_type.add(), 0)
                case "enum":
                    self._enum(file.enum_type.add())
                case "option" | "extend":
                    self._pass_over()
                case ";":
                    self._skip(";")
                case _:
                    raise self._error(f"{word!r} is not supported; a message, enum or import is")
        return file

    def _import(self, file: File) -> None:
        self._skip("import")
        if self._peek() in ("public", "weak"):
            self._take()
        name = self._string()
        if name in _KNOWN:
            file.dependency.append(name)
        elif not _IGNORED.fullmatch(name):
            raise self._error(f"import {name!r}: only {', '.join(_KNOWN)} can be imported")
        self._skip(";")

    def _message(self, message: DescriptorProto, depth: int) -> None:
        self._skip("message")
        message.name = self._take()
        self._skip("{")
        if depth > 32:
            raise self._error("messages nested deeper than 32")
        while self._peek() != "}":
            match self._peek():
                case "message":
                    self._message(message.nested_type.add(), depth + 1)
                case "enum":
                    self._enum(message.enum_type.add())
                case "oneof":
                    self._oneof(message)
                case "map":
                    self._map(message)
                case "option" | "extend" | "reserved" | "extensions":
                    self._pass_over()
                case ";":
                    self._skip(";")
                case _:
                    self._field(message)
        self._skip("}")

    def _oneof(self, message: DescriptorProto) -> None:
        self._skip("oneof")
        index = len(message.oneof_decl)
        message.oneof_decl.add(name=self._take())
        self._skip("{")
        while self._peek() != "}":
            if self._peek() == "option":
                self._pass_over()
            else:
                self._field(message).oneof_index = index
        self._skip("}")

    def _map(self, message: DescriptorProto) -> None:
        self._skip("map", "<")
        key = self._take()
        self._skip(",")
        value = self._take()
        self._skip(">")
        name = self._take()
        entry = message.nested_type.add(name="".join(w.capitalize() for w in name.split("_")) + "Entry")
        entry.options.map_entry = True
        for number, (part, type_) in enumerate((("key", key), ("value", value)), 1):
            self._typed(entry.field.add(name=part, number=number, label=1), type_)
        field = message.field.add(name=name, label=3, type_name=entry.name, type=11)
        self._end_of_field(field)

    def _field(self, message: DescriptorProto) -> FieldDescriptorProto:
        field = message.field.add(label=1)
        if self._peek() in _LABELS:
            label = self._take()
            field.label = _LABELS[label]
        self._typed(field, self._take())
        field.name = self._take()
        self._end_of_field(field)
        return field

    def _typed(self, field: FieldDescriptorProto, type_: str) -> None:
        if type_ in _SCALARS:
            field.type = _SCALARS[type_]
        else:
            field.type_name = type_  # a message or an enum: the pool finds out

    def _end_of_field(self, field: FieldDescriptorProto) -> None:
        self._skip("=")
        number = self._take()
        if not number.isdigit():
            raise self._error(f"expected the number of the field {field.name}, got {number!r}")
        field.number = int(number, 0)
        if self._peek() == "[":
            self._skip("[")
            while self._peek() != "]":
                if self._peek() == "default":
                    self._skip("default", "=")
                    text = self._take()
                    field.default_value = text[1:-1] if text[:1] in "\"'" else text
                else:
                    self._take()
            self._skip("]")
        self._skip(";")

    def _enum(self, enum: EnumDescriptorProto) -> None:
        self._skip("enum")
        enum.name = self._take()
        self._skip("{")
        while self._peek() != "}":
            if self._peek() in ("option", "reserved"):
                self._pass_over()
                continue
            name = self._take()
            self._skip("=")
            number = self._take()
            try:
                enum.value.add(name=name, number=int(number, 0))
            except ValueError:
                raise self._error(f"expected the number of {name}, got {number!r}") from None
            while self._peek() not in (";", None):
                self._take()
            self._skip(";")
        self._skip("}")

    def _pass_over(self) -> None:
        """Skip a statement, or a block."""
        depth = 0
        while True:
            token = self._take()
            depth += (token == "{") - (token == "}")
            if depth == 0 and token in (";", "}"):
                return

    def _string(self) -> str:
        text = self._take()
        if text[:1] not in ("'", '"'):
            raise self._error(f"expected a string, got {text!r}")
        return text[1:-1]

    def _peek(self) -> str | None:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else None

    def _take(self) -> str:
        if self._at >= len(self._tokens):
            raise self._error("the file ends too early; is a closing brace missing?")
        self._at += 1
        return self._tokens[self._at - 1][0]

    def _skip(self, *expected: str) -> None:
        for each in expected:
            if (token := self._take()) != each:
                raise self._error(f"expected {each!r}, got {token!r}")

    def _error(self, message: str, offset: int | None = None) -> LoadError:
        if offset is None:
            offset = self._tokens[max(0, self._at - 1)][1] if self._tokens else 0
        return LoadError(message, file=str(self._path), line=self._text.count("\n", 0, offset) + 1)
