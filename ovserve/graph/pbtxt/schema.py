"""Check a scanned graph.pbtxt against the message descriptors, before protobuf parses it.

protobuf would reject most of this too, but without a position (types and required fields inside an Any) or a
hint (misspelt names). It accepts two options in one node_options, and the last one wins silently. Forms that
older OVMS releases accepted are adapted here, with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor
from google.protobuf.struct_pb2 import Struct

from ovserve.graph.pbtxt.proto_file import Messages
from ovserve.graph.pbtxt.scanner import Document, Edit, Entry, Fault
from ovserve.protos import calculator_pb2, llm_pb2, options_pb2
from ovserve.protos.pool import POOL

ANY = "google.protobuf.Any"
NOT_IN_CPP = "C++ calculators are not here: write it in Python, in a calculators.py next to the graph"
NODE = calculator_pb2.CalculatorGraphConfig.Node.DESCRIPTOR.full_name
LLM = llm_pb2.LLMCalculatorOptions.DESCRIPTOR.full_name
EMBEDDINGS = options_pb2.EmbeddingsCalculatorOVOptions.DESCRIPTOR.full_name
RERANK = options_pb2.RerankCalculatorOVOptions.DESCRIPTOR.full_name

# protobuf 6 reads only this shape; the domain has no meaning, so other domains are overwritten.
_PLAIN_DOMAIN = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*\.[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Removed:
    """An option of an older release: its warning, and the replacement text for a given value."""

    warning: str
    replacement: dict[str, str] = field(default_factory=dict)


# No replacement may be longer than the original, so that columns stay the same.
_TRUE = dict.fromkeys(("true", "True", "t", "1"), "pooling: MEAN")
_FALSE = dict.fromkeys(("false", "False", "f", "0"), "pooling: CLS")
REMOVED: dict[tuple[str, str], Removed] = {
    (LLM, "block_size"): Removed(
        "removed in OVMS 2025.0 and ignored; the engine chooses the size of a cache block"
    ),
    (LLM, "response_parser"): Removed(
        "replaced in OVMS 2025.3 and ignored; use tool_parser and reasoning_parser"
    ),
    (EMBEDDINGS, "mean_pooling"): Removed(
        "replaced in OVMS 2025.3 by pooling; read as pooling: MEAN if true, CLS if false", _TRUE | _FALSE
    ),
}

# Calculator -> its old options and the calculator that replaced it.
OLD_CALCULATORS = {
    "EmbeddingsCalculator": ("mediapipe.EmbeddingsCalculatorOptions", "EmbeddingsCalculatorOV", EMBEDDINGS),
    "RerankCalculator": ("mediapipe.RerankCalculatorOptions", "RerankCalculatorOV", RERANK),
}


MAX_FAULTS = 50  # that are reported after the first one


@dataclass(slots=True)
class Checked:
    """The result of `check`: edits of the text, and warnings at entries."""

    edits: list[Edit] = field(default_factory=list)
    warnings: list[tuple[Entry, str]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def check(document: Document, messages: Messages | None = None) -> Checked:
    """Check the document. Raises Fault with the first mistake in reading order, and the others in it.

    `messages`: those of the server, and of `.proto` files next to the graph.
    """
    checker = _Checker(messages or Messages())
    checker.fields(document.entries, calculator_pb2.CalculatorGraphConfig.DESCRIPTOR, [], 0, "")
    if checker.result.faults:
        first, *others = sorted(checker.result.faults, key=lambda fault: fault.offset)
        first.others = tuple(others[:MAX_FAULTS])
        raise first
    return checker.result


def known_options() -> list[str]:
    """Return every message that may stand in node_options, those of out-of-tree calculators included."""
    extensions = POOL.FindAllExtensions(calculator_pb2.CalculatorOptions.DESCRIPTOR)
    return sorted(each.message_type.full_name for each in extensions if each.message_type)


class _Checker:
    def __init__(self, messages: Messages) -> None:
        self.result = Checked()
        self._messages = messages

    def fields(
        self, entries: list[Entry], message: Descriptor, around: list[Descriptor], at: int, calculator: str
    ) -> None:
        """One block: `around` are the enclosing messages, `at` where the block begins."""
        try:
            if message.full_name == ANY:
                self._any(entries)
        except Fault as fault:
            self.result.faults.append(fault)
            return
        for entry in entries:
            try:
                inner = self._field(entry, message, around, calculator)
            except Fault as fault:
                self.result.faults.append(fault)
                continue
            if inner is None or entry.value is not None:  # a scalar, or a mix-up that protobuf explains
                continue
            if inner.full_name == NODE:
                calculator = _calculator(entry)
            if inner.full_name == STRUCT and message.full_name == ANY and is_plain(entry):
                # protobuf knows no plain fields: it gets an empty block, which `config.py` fills afterwards.
                self.result.edits.append((entry.at + 1, entry.value_end - 1, ""))
                continue
            self.fields(entry.children, inner, [*around, message], entry.start, calculator)
        present = {entry.name for entry in entries}
        for each in message.fields:
            if each.is_required and each.name not in present:
                text = f"required, but missing in {message.full_name}"
                self.result.faults.append(Fault(text, at, each.name))

    def _field(
        self, entry: Entry, message: Descriptor, around: list[Descriptor], calculator: str
    ) -> Descriptor | None:
        """Check one field, and return the message type of its block; None for a scalar or a removed field."""
        if entry.name.startswith("["):
            return _bracketed(entry, message, calculator, self._messages)
        if entry.name in message.fields_by_name:
            descriptor = message.fields_by_name[entry.name]
            if descriptor.enum_type:
                _check_enum(entry, descriptor.enum_type)
            if descriptor.type == descriptor.TYPE_STRING and not entry.is_utf8():
                raise Fault("escapes in this string make bytes that are not UTF-8", entry.at)
            if message.full_name == ANY and entry.name == "type_url":
                _find_type(entry.text, entry, calculator, self._messages)
            return descriptor.message_type
        if (message.full_name, entry.name) in REMOVED:
            self._mend(entry, REMOVED[message.full_name, entry.name])
            return None
        raise _unknown_field(entry, message, around)

    def _any(self, entries: list[Entry]) -> None:
        expansions = [entry for entry in entries if entry.name.startswith("[")]
        if expansions and len(entries) > 1:
            text = f"{entries[1].name} is a second value in one block; give each message its own block"
            raise Fault(text, entries[1].start)
        for entry in expansions:
            domain, _, name = entry.name[1:-1].rpartition("/")
            if not domain:
                name = name.removesuffix(".ext")
                raise Fault(f"needs a domain here: [type.googleapis.com/{name}]", entry.start)
            if not _PLAIN_DOMAIN.fullmatch(domain):
                self.result.edits.append((entry.start, entry.name_end, f"[a.b.c/{name}]"))

    def _mend(self, entry: Entry, removed: Removed) -> None:
        if removed.replacement and entry.value not in removed.replacement:
            raise Fault(removed.warning, entry.at)
        new = removed.replacement.get(entry.value or "", "")
        self.result.edits.append((entry.start, entry.end, new))
        self.result.warnings.append((entry, removed.warning))


def _bracketed(entry: Entry, message: Descriptor, calculator: str, messages: Messages) -> Descriptor | None:
    name = entry.name[1:-1]
    if message.full_name == ANY:
        return _find_type(name, entry, calculator, messages)
    if "/" in name or not message.is_extendable:
        return None  # protobuf reports the mistake
    try:
        return POOL.FindExtensionByName(name).message_type
    except KeyError:
        if message.full_name == calculator_pb2.CalculatorOptions.DESCRIPTOR.full_name:
            raise _unknown_type(name.removesuffix(".ext"), entry, calculator, messages) from None
        extensions = [each.full_name for each in POOL.FindAllExtensions(message)]
        raise Fault(f"unknown extension {name}{_nearest(name, extensions)}", entry.start) from None


def _find_type(url: str, entry: Entry, calculator: str, messages: Messages) -> Descriptor | None:
    name = url.rpartition("/")[2]
    if not name or "/" not in url:
        return None
    try:
        descriptor: Descriptor = messages.FindMessageTypeByName(name)
    except KeyError:
        raise _unknown_type(name, entry, calculator, messages) from None
    return descriptor


def _unknown_type(name: str, entry: Entry, calculator: str, messages: Messages) -> Fault:
    for old, (options, _, _) in OLD_CALCULATORS.items():
        if name == options:
            return _old_calculator(old, entry)
    types = [*known_options(), *messages.names]
    # not a misspelling: the calculator is unknown here
    if calculator and name.rpartition(".")[2] == f"{calculator}Options":
        text = f"calculator {calculator} is not available in this server, nor are its options {name}"
        return Fault(f"{text}; {NOT_IN_CPP} (docs/calculators.md)", entry.start)
    packages = {each.rpartition(".")[0] for each in types}
    if name.rpartition(".")[0] not in packages and not _nearest(name, types, listing=False, least=0.9):
        text = f"unknown option type {name}: no .proto file next to the graph defines it"
        own = f"options of a calculator of your own may also stand in [type.googleapis.com/{STRUCT}]"
        return Fault(f"{text}; {own}", entry.start)
    return Fault(f"unknown option type {name}{_nearest(name, types)}", entry.start)


def _calculator(node: Entry) -> str:
    entry = node.child("calculator")
    if entry and entry.text in OLD_CALCULATORS:
        raise _old_calculator(entry.text, entry)
    return entry.text if entry else ""


def _old_calculator(name: str, entry: Entry) -> Fault:
    _, modern, options = OLD_CALCULATORS[name]
    return Fault(
        f'{name} with a SESSION side packet belongs to older releases; write calculator: "{modern}" '
        f"with node_options {{ [type.googleapis.com/{options}] {{ models_path: ... }} }} and no session node",
        entry.start,
    )


def _check_enum(entry: Entry, enum: EnumDescriptor) -> None:
    value = entry.value or ""
    if value[:1] in ("'", '"'):
        raise Fault(f"a value of {enum.name} takes no quotes: {entry.text}", entry.at)
    if value.isidentifier() and value not in enum.values_by_name:
        raise Fault(f"{enum.name} has no value {value}{_nearest(value, enum.values_by_name)}", entry.at)


def _unknown_field(entry: Entry, message: Descriptor, around: list[Descriptor]) -> Fault:
    text = f"{message.full_name} has no such field"
    owner = next((each for each in reversed(around) if entry.name in each.fields_by_name), None)
    if owner:
        text += f", {owner.full_name} has; is a closing brace missing before it?"
    else:
        text += _nearest(entry.name, message.fields_by_name, listing=False)
    return Fault(text, entry.start, entry.name)


def _nearest(name: str, names: Iterable[str], *, listing: bool = True, least: float = 0.6) -> str:
    """Return the end of a message: the nearest known name, and all of them. Case and package are ignored."""
    by_key = {each.removesuffix(".ext").rpartition(".")[2].lower(): each for each in names}
    near = get_close_matches(name.removesuffix(".ext").rpartition(".")[2].lower(), by_key, n=1, cutoff=least)
    tail = f"; did you mean {by_key[near[0]]}?" if near else ""
    return f"{tail}; known: {', '.join(sorted(by_key.values()))}" if listing else tail


# Options without a message of their own: `[type.googleapis.com/google.protobuf.Struct] { ... }`.
#
# Protobuf's text form names the type of every value: `fields { key: "limit" value { number_value: 3 } }`.
# Here plain fields are read as well, as in any other message:
#
#     [type.googleapis.com/google.protobuf.Struct] { limit: 3 words: ["a", "b"] window { size: 64 } }
#
# Both give the same values, with the offset of each for error messages.


STRUCT = Struct.DESCRIPTOR.full_name

_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?f?|inf(?:inity)?|nan)", re.IGNORECASE)
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


def read_block(entry: Entry, document: Document, *, plain: bool = True) -> Values:
    """Read plain fields, or a Struct in protobuf's own form. Raises Fault at a name that is not one."""
    values = Values(offsets={(): entry.start})
    values.value = (_plain if plain else _typed)(entry, (), values.offsets, document)
    return values


def as_struct(values: Values) -> Struct:
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
    return _number(text) if _FLOAT.fullmatch(text) else text  # a name without quotes, as of an enum


def _number(text: str) -> float:
    return float(text if text.lower().endswith("inf") else text.rstrip("fF"))


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
                number = _number(entry.text)
                return int(number) if number.is_integer() else number
            case "string_value":
                return entry.text
            case "bool_value":
                return entry.text[:1] in ("t", "T", "1")  # protobuf has checked it
    return None
