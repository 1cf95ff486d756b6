"""Calls written as JSON, `{"name": ..., "arguments": {...}}` alone or in a list, read as they arrive.

Dialects differ in tags and key names. A call is announced when its name is certain; arguments are streamed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container

import msgspec

from ovserve.llm.parsing.cursor import Cursor, EndOfText, Markers, NotACall, Steps, markers_of
from ovserve.llm.parsing.dialect import attempt
from ovserve.llm.parsing.json_text import as_json, quote, unquote
from ovserve.llm.parsing.literal import Tools
from ovserve.llm.parsing.loose_json import repaired, string, value
from ovserve.llm.parsing.output import Output

FENCES = ("```json", "```xml", "```")
_BRACKETS = re.compile(r"[}\]]+")
_WORD = re.compile(r"\w{1,64}")
_NAME = re.compile(r"[\w.\-/:]+")


class Keys(msgspec.Struct, frozen=True):
    """The names of a call's parts, and the certainty required to treat an object as a call."""

    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters", "args", "input")
    id: tuple[str, ...] = ("id", "tool_call_id")
    good_id: Callable[[str], bool] = bool
    good_name: Callable[[str], bool] = bool
    # A marker announced a call: arguments may be missing, other keys may be there. Without one
    # (`unmarked`), only an object of exactly these keys is a call, and nothing is announced before its
    # arguments begin.
    marked: bool = True
    # Even with a marker an object without arguments is not a call (other JSON may follow the marker).
    needs_arguments: bool = False
    closers: Markers | None = None  # tags that end the block of calls, or begin the next one
    # The parameters of a tool. Models write them next to the name, too, and leave `arguments` out.
    parameters: Callable[[str], Container[str]] = lambda name: ()
    outer: int = 1  # braces around the arguments

    @property
    def announced_by_name(self) -> bool:
        return self.marked and not self.needs_arguments

    def allowed(self, key: str) -> bool:
        return self.marked or key in ("type", "function") or key in self.name + self.arguments + self.id


MARKED: Keys = Keys()
Read = Callable[[Cursor, Output, Keys], Steps[None]]


def marked_keys(tools: Tools) -> Keys:
    return Keys(parameters=tools.parameters)


def unmarked(tools: Tools, good_id: Callable[[str], bool] = bool) -> Keys:
    """Return keys for JSON without a marker: only an object that names a tool of the request is a call."""
    return Keys(marked=False, good_name=tools.__contains__, good_id=good_id)


def block(
    cur: Cursor, out: Output, keys: Keys, *, closers: tuple[str, ...] = (), forms: str = "{["
) -> Steps[None]:
    """Read the text after an opening tag: objects or a list, then perhaps the closing tag. A code fence
    around them, which models write within their tags too, is not part of them."""
    if closers and keys.closers is None:
        keys = msgspec.structs.replace(keys, closers=markers_of(frozenset(closers)))
    yield from cur.space()
    fence = (yield from cur.either(FENCES)) if keys.marked and closers else ""
    yield from cur.space()
    char = yield from cur.peek()
    if keys.marked and closers and (yield from cur.either(closers)):
        return  # an empty block is dropped
    if not char or char not in forms:
        raise NotACall if char else EndOfText
    cur.sure = cur.sure or keys.marked
    if char == "[":
        yield from call_list(cur, out, keys)
    else:
        yield from call_object(cur, out, keys)
        while (yield from another(cur, out, keys)):
            pass
    if fence:
        yield from cur.close("```")
    if not (yield from cur.close(*closers)):
        yield from attempt(cur, out, stray(cur, closers))


def stray(cur: Cursor, closers: tuple[str, ...]) -> Steps[None]:
    """Read an extra bracket before the closing tag, which models write quite often."""
    yield from cur.space()
    if not (yield from cur.matching(_BRACKETS)) or not (yield from cur.close(*closers)):
        raise NotACall


def another(cur: Cursor, out: Output, keys: Keys, tag: str = "") -> Steps[bool]:
    """Read the next call, perhaps after a separator and a tag; or a separator with nothing behind it."""
    mark = cur.mark()
    yield from cur.space()
    parted = yield from cur.either((";", ","))
    yield from cur.space()
    yield from cur.literal(tag)
    yield from cur.space()
    char = yield from cur.peek()
    if char == "{" and (yield from attempt(cur, out, call_object(cur, out, keys))):
        cur.release(mark)
        return True
    if parted and not char:
        cur.release(mark)
    else:
        cur.rollback(mark)
    return False


def call_list(cur: Cursor, out: Output, keys: Keys, item: Read | None = None) -> Steps[None]:
    """Read `[{...}, {...}]`."""
    read_item = item or call_object
    yield from read_list(cur, out, lambda: read_item(cur, out, keys), strict=not keys.marked)


def read_list(cur: Cursor, out: Output, begin: Callable[[], Steps[None]], *, strict: bool) -> Steps[None]:
    """Read `[call, call]`. A broken call does not affect the good ones, but no list begins with one if
    `strict`. Without a good one it is not a list of calls."""
    good, faulty = 0, strict
    yield from cur.expect("[")
    try:
        while True:
            yield from cur.space()
            if (yield from cur.literal("]")):
                break
            if (yield from attempt(cur, out, begin())):
                good += 1
            elif strict and not good:
                raise NotACall
            else:
                faulty = True
                yield from _skip(cur)
            yield from cur.space()
            if (yield from cur.peek()) not in ("]", "{"):
                yield from cur.expect(",")
    except EndOfText:
        if not good:
            raise
        cur.advance_all()  # a truncated call after good ones
    except NotACall:
        if not good:
            raise
    if faulty and not good:
        raise NotACall


def _skip(cur: Cursor) -> Steps[None]:
    """Skip a broken call, to its closing bracket or what parts it from the next one, aware of strings."""
    depth, quoted, start = 0, "", cur.offset
    while True:
        char = yield from cur.peek()
        if not char:
            yield from cur.more()
        if not depth and not quoted and char in ",]":
            if cur.offset == start:
                raise NotACall
            return
        cur.advance(1)
        if quoted and char == "\\":
            yield from cur.peek()
            cur.advance(1)
        elif quoted:
            quoted = "" if char == quoted else quoted
        elif char in "'\"":
            quoted = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth <= 0:
                return


def call_object(cur: Cursor, out: Output, keys: Keys, *, nested: bool = False) -> Steps[None]:
    """Read one call. Raises NotACall when the object is not a call.

    After a marker and complete arguments it is a call, also if its last brace is missing. Arguments in which
    the answer ends stay as they came: the client sees that they are incomplete.
    """
    call = _Call(out, keys)
    try:
        yield from _object(cur, call, nested=nested)
    except NotACall as failure:
        ended = isinstance(failure, EndOfText)
        if (ended and cur.cut) or not ((keys.marked and call.complete) or (ended and call.begun)):
            raise
    call.end()


class _Call:
    """One call while its object is read: keys come in any order."""

    def __init__(self, out: Output, keys: Keys) -> None:
        self.keys = keys
        self._out = out
        self._name = ""
        self._id: str | None = None
        self._started = False
        self._has_arguments = False
        self.complete = False  # name and arguments have come
        self._held: list[str] = []  # arguments that came before the name
        self._others: dict[str, list[str]] = {}  # keys outside of the call, and their values

    @property
    def begun(self) -> bool:
        """Return whether arguments of it were passed on."""
        return self._started and self._has_arguments

    def set_name(self, name: str) -> None:
        if not name.strip() or self._name or not self.keys.good_name(name.strip()):
            raise NotACall
        self._name = name.strip()
        if self.keys.announced_by_name or self._has_arguments:
            self._start()

    def declares(self, key: str) -> bool:
        return bool(self._name) and key in self.keys.parameters(self._name)

    def other(self, key: str) -> Callable[[str], object]:
        """Return where the value of a key goes that does not belong to a call."""
        self._others[key] = []
        return self._others[key].append

    def identified(self, id: str) -> None:
        if self.keys.good_id(id):
            self._id = id

    def arguments_begin(self) -> None:
        if self._has_arguments:
            raise NotACall
        self._has_arguments = True
        if self._name:
            self._start()

    def arguments(self, text: str) -> None:
        if self._started:
            self._out.arguments(text)
        else:
            self._held.append(text)

    def arguments_end(self) -> None:
        self._out.arguments_complete = self.complete = self._started

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._out.start_call(self._name, self._id)
            for text in self._held:
                self._out.arguments(text)

    def end(self) -> None:
        if not self._name or not (self._has_arguments or self.keys.announced_by_name):
            raise NotACall
        self._start()
        if not self._has_arguments:
            self._out.arguments(self._from_others())
        self._out.end_call()

    def _from_others(self) -> str:
        """Return as arguments what stands next to the name: parameters of the tool, one object under a name
        of the model's own, or else all of it."""
        values = {key: "".join(parts) for key, parts in self._others.items()}
        if values.get("type") == '"function"':  # the type of the call
            del values["type"]
        parameters = {key: text for key, text in values.items() if self.declares(key)}
        text = next(iter(values.values())) if not parameters and len(values) == 1 else ""
        whole = as_json(unquote(text) if text.startswith('"') else text, "{")
        items = (parameters or values).items()
        return whole or "{" + ", ".join(f"{quote(key)}: {text}" for key, text in items) + "}"


def _object(cur: Cursor, call: _Call, *, nested: bool) -> Steps[None]:
    keys = call.keys
    yield from cur.expect("{")
    while True:
        yield from cur.space()
        if (yield from cur.literal("}")):
            return
        key = yield from _key(cur, call)
        yield from cur.space()
        char = yield from cur.peek()
        if not key:
            pass  # it was the name
        elif key in keys.name or (key == "function" and char in ('"', "'")):
            call.set_name((yield from string(cur)))
            cur.sure = True
        elif key in keys.arguments and (char == "{" or not call.declares(key)):
            yield from _arguments(cur, call, char, keys.outer + nested)
        elif key == "function" and char == "{" and not nested:
            yield from _object(cur, call, nested=True)
        elif key in keys.id and char in ('"', "'") and not call.declares(key):
            call.identified((yield from string(cur)))
        else:
            yield from value(cur, call.other(key), keys.closers)
        yield from cur.space()
        if (yield from cur.peek()) != "}":
            yield from cur.expect(",")
            yield from cur.space()
            if call.complete and (yield from cur.peek()) == "{":
                return  # the next call of a list: this one's last brace is missing


def _key(cur: Cursor, call: _Call) -> Steps[str]:
    """Read a key and the colon. Of `{"name="f"`, read the name as well and return ""."""
    keys = call.keys
    key = (yield from cur.matching(_WORD, 64)) or (yield from string(cur))
    if not keys.allowed(key):
        raise NotACall
    yield from cur.space()
    parted = yield from cur.either((":", "=") if keys.marked else (":",))
    stem = key.rstrip("=:")
    if stem != key and stem in keys.name:
        if not parted:  # the quote behind the key is the one before the name
            call.set_name((yield from cur.matching(_NAME, 256)))
            yield from cur.expect('"')
            return ""
        key = stem
    if not parted:
        raise cur.failure()
    return key


def _arguments(cur: Cursor, call: _Call, char: str, outer: int) -> Steps[None]:
    closers = call.keys.closers
    if char == "{":
        # As templates show the object in the one of the call.
        doubled = bool((yield from cur.next_of(("{{",))))
        cur.advance(int(doubled))
        call.arguments_begin()
        yield from value(cur, call.arguments, closers, outer=outer + doubled)
        if doubled:
            yield from cur.close("}")
    else:
        parts: list[str] = []
        yield from value(cur, parts.append, closers, outer=outer)
        text_of_parts = "".join(parts)
        quoted = text_of_parts.startswith('"')  # JSON inside a string: decoded once
        text = unquote(text_of_parts).strip() if quoted else text_of_parts
        decoded = as_json(text, "{") or repaired(text) if quoted else None
        decoded = "{}" if text in ("", "null") else decoded
        if decoded is None and not call.keys.announced_by_name:
            raise NotACall
        call.arguments_begin()
        # A stream has announced the call, so it stays one; the client can answer with an error.
        call.arguments(text_of_parts if decoded is None else decoded)
    call.arguments_end()
