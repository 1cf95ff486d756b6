"""Parse graph.pbtxt text into a checked `GraphConfig`.

Three readers share the work. `pbtxt/scanner.py` keeps positions; `pbtxt/schema.py` reports what protobuf
explains badly, and adapts options of older releases. protobuf's text_format decides the rest. Every mistake
is raised as a LoadError with file and line, and with the node and field if known; no protobuf exception
escapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

from google.protobuf import text_format
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, EncodeError, Message
from google.protobuf.message_factory import GetMessageClass

from ovserve.errors import LoadError
from ovserve.graph.pbtxt.proto_file import Messages, plain_fields
from ovserve.graph.pbtxt.scanner import Document, Entry, Fault, lenient_escapes
from ovserve.graph.pbtxt.schema import STRUCT, Values, as_struct, check, is_plain, read_block
from ovserve.protos.calculator_pb2 import CalculatorGraphConfig

M = TypeVar("M", bound=Message)

PROTO_SUFFIX = ".proto"  # files next to the graph that define option messages

_POSITION = re.compile(r"^\d+:\d+ : ")


@dataclass(frozen=True, eq=False)
class GraphConfig:
    """The parsed graph. Nodes are addressed by their index in `message.node`."""

    message: CalculatorGraphConfig
    file: str
    warnings: tuple[str, ...]
    _document: Document = field(repr=False)
    _messages: Messages = field(default_factory=Messages, repr=False)
    base: Path = Path()  # what relative paths in options start from

    def line_of_node(self, i: int) -> int:
        nodes = self._document.nodes
        return self._document.place(nodes[i].start)[0] if i < len(nodes) else 0

    def lines_of_node(self, i: int) -> tuple[int, int]:
        """Return the first and the last line of node `i`; 0, 0 if unknown."""
        if i >= len(self._document.nodes):
            return 0, 0
        entry = self._document.nodes[i]
        return self._document.place(entry.start)[0], self._document.place(max(entry.start, entry.end - 1))[0]

    def place_of(self, i: int | None, field: str, text: str | None = None) -> tuple[int, int]:
        """Return line and column of a field of node `i` (None: of the graph itself), with this value if
        given; 0, 0 if unknown."""
        if i is None:
            around = [entry for entry in self._document.entries if entry.name != "node"]
        else:
            around = self._document.nodes[i].children if i < len(self._document.nodes) else []
        for entry in (inner for each in around for inner in each.walk()):
            if entry.name == field and (text is None or (entry.value is not None and entry.text == text)):
                return self._document.place(entry.start if text is None else entry.at)
        return 0, 0

    def option_types(self, i: int) -> list[str]:
        """Return full names of the option messages of node `i`, in file order, `node_options` first."""
        node = self.message.node[i]
        names = [packed.TypeName() for packed in node.node_options if packed.type_url]
        set_ = (each.message_type for each, _ in node.options.ListFields() if each.is_extension)
        return names + [each.full_name for each in set_ if each]

    def options(self, i: int, type_: type[M]) -> M | None:
        """Return the options of this type of node `i`, wherever they stand; None if there are none."""
        name, node = type_.DESCRIPTOR.full_name, self.message.node[i]
        messages: list[M] = []
        for packed in node.node_options:
            if packed.TypeName() == name:
                messages.append(type_())
                packed.Unpack(messages[-1])  # cannot fail: parse_graph has unpacked each one
        for _, value in node.options.ListFields():
            if isinstance(value, type_):
                messages.append(value)
        if len(messages) > 1:
            raise self.error(f"{name} is given {len(messages)} times; give it once", i, "node_options")
        return messages[0] if messages else None

    def values(self, i: int, type_name: str) -> Values | None:
        """Return the options of node `i` that have this type as plain values; None if there are none."""
        packed = [each for each in self.message.node[i].node_options if each.TypeName() == type_name]
        if len(packed) > 1:
            raise self.error(f"{type_name} is given {len(packed)} times; give it once", i, "node_options")
        if not packed:
            return None
        message = self._messages.unpacked(packed[0])
        blocks = [block for block in _blocks(self._document.nodes[i]) if _type_of(block) == type_name]
        if not blocks:  # as `type_url` and `value`
            fields = MessageToDict(message) if type_name == STRUCT else plain_fields(message, None)
            return Values(fields, {(): self._document.nodes[i].start})
        if type_name == STRUCT:
            return read_block(blocks[0], self._document, plain=is_plain(blocks[0]))
        values = read_block(blocks[0], self._document)
        values.value = plain_fields(message, values.value)
        return values

    def paths(self) -> list[str]:
        """Return every path in the options of all nodes (`models_path` and the like), as written there."""
        entries = [
            inner for node in self._document.nodes for child in node.children for inner in child.walk()
        ]
        return [e.text for e in entries if e.name.endswith("_path") and e.value is not None and e.text]

    def error(
        self, message: str, i: int, field: str, text: str | None = None, *, name: str = "", offset: int = -1
    ) -> LoadError:
        """Return a LoadError at node `i`: at the offset, or that field if it is present, else at the node."""
        line, column = self.place_of(i, field, text) if offset < 0 else self._document.place(offset)
        node, line = self.message.node[i], line or self.line_of_node(i)
        name = name or node.name or node.calculator
        return LoadError(message, file=self.file, line=line, node=name, field=field, column=column)


def load_graph(path: Path, base: Path | None = None) -> GraphConfig:
    """Read a file. `base` is what relative paths in options start from; by default the directory of the
    file."""
    try:
        text = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: no path, because of a null character
        why = getattr(error, "strerror", None) or error
        raise LoadError(f"cannot be read: {why}", file=str(path)) from error
    return parse_graph(text, str(path), base)


def parse_graph(text: str | bytes, file: str = "graph.pbtxt", base: Path | None = None) -> GraphConfig:
    try:
        # A str goes through bytes as well: half a surrogate pair in a name breaks protobuf's C code.
        text = (text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")).decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise LoadError(f"not UTF-8 text: {error.reason}", file=file, line=line) from error
    start = (Path(file).parent if base is None else base).resolve()
    beside = start.glob(f"*{PROTO_SUFFIX}") if base is not None or Path(file).is_file() else ()
    messages = Messages(sorted(beside))
    document = Document(text.removeprefix("\ufeff"))
    try:
        if document.fault:
            raise document.fault
        checked = check(document, messages)
        message = _parse(document, document.replaced(checked.edits), messages)
        _fill_structs(document, message)
    except Fault as fault:
        wrong = _load_error(fault, document, file)
        wrong.others = tuple([_load_error(other, document, file) for other in fault.others])
        raise wrong from fault.__cause__
    warnings = tuple(
        str(_load_error(Fault(warning, entry.start), document, file)) for entry, warning in checked.warnings
    )
    return GraphConfig(message, file, warnings, document, messages, start)


def _parse(document: Document, text: str, messages: Messages) -> CalculatorGraphConfig:
    message = CalculatorGraphConfig()
    try:
        with lenient_escapes():
            # It asks the pool for names only, and `messages` answers with those of the files too.
            text_format.Parse(text, message, descriptor_pool=cast(DescriptorPool, messages))
        _check_packed(document.entries, message.graph_options, "graph_options", messages)
        for entry, node in zip(document.nodes, message.node, strict=True):
            _check_packed(entry.children, node.node_options, "node_options", messages)
    except text_format.ParseError as error:
        line, column = error.GetLine(), error.GetColumn()
        offset = document.offset(line, column or 1) if line else 0
        # protobuf repeats position and source line in some messages; ours already carry file and position.
        source = text.split("\n")[line - 1] if line else ""
        raise Fault(_POSITION.sub("", str(error)).removeprefix(f"'{source}': "), offset) from error
    except (EncodeError, RecursionError, ValueError, TypeError) as error:
        # Everything known is caught by the checks above; a new protobuf may still find something.
        raise Fault(f"{type(error).__name__}: {error}", 0) from error
    return message


def _check_packed(entries: list[Entry], packed: Iterable[AnyMessage], name: str, messages: Messages) -> None:
    """Unpack raw Anys (`type_url` and `value`), which no check has seen yet, while their line is known."""
    for entry, each in zip((entry for entry in entries if entry.name == name), packed, strict=True):
        if not each.type_url:
            continue
        try:
            inner = GetMessageClass(messages.FindMessageTypeByName(each.TypeName()))()
        except KeyError:
            raise Fault(f"type_url {each.type_url!r} names no known type", entry.start) from None
        if "/" not in each.type_url:
            raise Fault(f"type_url {each.type_url!r} needs a domain and a slash", entry.start)
        try:
            each.Unpack(inner)
        except DecodeError as error:
            raise Fault(f"value is not a serialized {each.TypeName()}", entry.start) from error
        if not inner.IsInitialized():
            raise Fault(f"value lacks required fields of {each.TypeName()}", entry.start)


def _blocks(node: Entry) -> list[Entry]:
    """Return the expanded messages in a node's `node_options`."""
    options_of_node = [options.children for options in node.children if options.name == "node_options"]
    return [block for children in options_of_node for block in children if block.name.startswith("[")]


def _type_of(block: Entry) -> str:
    return block.name[1:-1].rpartition("/")[2]


def _fill_structs(document: Document, message: CalculatorGraphConfig) -> None:
    """Put the values of plain Struct blocks into the message, from which digests of graphs are made."""
    for entry, node in zip(document.nodes, message.node, strict=True):
        options = [each for each in entry.children if each.name == "node_options"]
        for each, packed in zip(options, node.node_options, strict=True):
            for block in each.children:
                if _type_of(block) == STRUCT and is_plain(block):
                    packed.Pack(as_struct(read_block(block, document)))


def _load_error(fault: Fault, document: Document, file: str) -> LoadError:
    """Build the error with what the offset gives: line and column, the node around it, and its field."""
    line, column = document.place(fault.offset)
    path = document.path(fault.offset)
    node = path[0] if path and path[0].name == "node" else None
    naming = node and (node.child("name") or node.child("calculator"))
    name = naming.text if naming else ""
    where = fault.field or (path[-1].name if path and path[-1] is not node else "")
    text = f"{fault.message} (at {line}:{column})"
    return LoadError(text, file=file, line=line, node=name, field=where, column=column)
