"""Calls written with one tag per parameter and untyped text between them, as in qwen3coder.

Qwen3coder, seed_oss, minicpm5, minimax_m2, step3, onyx, glm45 and deepseek_v32 differ in the
spelling of tags. Values are raw text (no entities, no escapes), typed by the tool's
schema. Arguments are sent when the call is complete, because a type can need the whole value.

A value may hold the format's own tags; what follows a tag decides whether it is the format's. A closing tag
ends the value where a parameter, the end of the call or the end of the text follows. It does not where a
second closing tag follows without a parameter in between.
"""

from __future__ import annotations

import re
from collections.abc import Container, Set
from contextlib import suppress

from ovserve.llm.parsing.cursor import Cursor, EndOfText, Markers, NotACall, Steps, markers_of
from ovserve.llm.parsing.dialect import CDATA, GAP_CHARACTERS, Form, good_name, header
from ovserve.llm.parsing.json_text import as_json, quote
from ovserve.llm.parsing.literal import Tools, to_json
from ovserve.llm.parsing.loose_json import repaired
from ovserve.llm.parsing.output import Output

_MAX_TAG = 512
_MAX_LOOK_AHEADS = 16  # per call, each to the next closing tags
_MAX_TEXT_AFTER_CALL = 4096  # characters searched for a closing tag that shows that the call goes on
_MAX_TEXT_OF_CALLS = 16_384  # the same, for one that shows that a call is quoted
_CDATA_END = Markers(("]]>",))
_GAP = re.compile(f"[{GAP_CHARACTERS}]*")
_QUOTED = re.compile(r"""\s*(?:name\s*=\s*)?(["'])(.+?)\1""", re.DOTALL)
# In a tag that lost its end, the name and what parts it from the value.
_KEY = re.compile(r"[\w.$-]+")
_KEY_AND_VALUE = re.compile(r"\s*([\w.$-]+)(?:\s*[:=]\s*|\s+)(?=\S)")
_ATTRIBUTES = re.compile(r"""(?:[\w:.-]+\s*=\s*(?:"[^"]*"|'[^']*')\s*)+""")
_ATTRIBUTE = re.compile(r'([^"]*)"\s*(?:(?:string|type|index)\s*=\s*"(\w+)")?\s*(/?)')
_STRING = ("true", "string", "/")  # attributes of a parameter whose value is a string


def calls(cur: Cursor, out: Output, tools: Tools, form: Form) -> Steps[None]:
    """Read one call or more, then perhaps the end of the block."""
    yield from cur.space()
    tag = yield from cur.either(form.spellings(form.call))
    if not tag:
        yield from cur.expect(form.call)
    while True:
        name, attribute = yield from _tag(cur, form)
        if tag != form.call and name not in tools:
            raise NotACall
        tag = form.call
        closed = False
        if attribute != "/":
            closed = yield from body(cur, out, tools, form, name)
        elif not good_name(name) or tools.lacks(name):
            raise NotACall
        else:
            out.start_call(name)
            out.arguments("{}")
            out.end_call()
        if closed or (yield from cur.close(*form.closers)):
            return
        if not (yield from cur.close(*form.spellings(form.call))):
            return


def call_name(cur: Cursor, tools: Tools, form: Form) -> Steps[str]:
    """Read the name of a call after its tag."""
    if not form.name_ends:
        return (yield from _tag(cur, form))[0]
    mark = cur.mark()
    text, end = yield from header(cur, markers_of(frozenset(form.name_ends)))
    name = text.strip()
    if end == form.tag_end:  # a key stands next to the name, without its own tag
        name = tools.before_key(name)
        cur.rollback(mark)
        cur.advance(text.index(name) + len(name))
    else:
        cur.release(mark)
    return name


def body(cur: Cursor, out: Output, tools: Tools, form: Form, name: str) -> Steps[bool]:
    """Read one call from after its name; return whether the end of the block ended it.

    A call of a tool of the request is announced as soon as a tag or an object follows its name, and stands
    from its first parameter on: what is missing then is left out. A call of another name is announced when it
    is complete.
    """
    if not good_name(name):
        raise NotACall
    yield from cur.space()
    tag = yield from cur.next_of(form.inner)
    is_defined = not tools.lacks(name)
    call = _Call(cur, tools, form, name)
    begins = is_defined and ((yield from cur.peek()) == "{" or (yield from call.lacks_tag()))
    if not tag and not begins:
        rest = cur.buf[cur.pos :]
        if not cur.ended or not any(text.startswith(rest) for text in form.inner):
            raise NotACall
        if cur.cut:
            out.start_call(name)
            out.arguments("{")
        raise EndOfText
    if is_defined:
        out.start_call(name)
    try:
        yield from call.read()
        if not (call.ended_by or (is_defined and call.arguments)):
            raise EndOfText
    except EndOfText:
        if cur.cut:  # send the partial value, visibly incomplete
            if not is_defined:
                out.start_call(name)
            out.arguments(call.partial())
        raise
    if not is_defined:
        out.start_call(name)
    text = "".join(call.text).strip()
    instead = as_json(text, "{") or repaired(text) if not call.arguments else None
    out.arguments(instead or "{" + ", ".join(_items(call.arguments)) + "}")
    out.end_call()
    if text and not instead:
        out.content(text)
    return call.ended_by in form.closers


class _Call:
    """The parameters of one call while they are read."""

    def __init__(self, cur: Cursor, tools: Tools, form: Form, name: str) -> None:
        self.arguments: dict[str, str] = {}  # their JSON
        self.text: list[str] = []  # between the parameters, where there should be none
        self.ended_by = ""
        self._cur, self._tools, self._form, self._name = cur, tools, form, name
        self._known = tools.parameters(name)
        self._key = ""
        self._parts: list[str] = []
        self._quotes = False  # the value has opening tags that are text
        self._quoted = 0  # those of them that are not closed yet
        self._look_aheads = _MAX_LOOK_AHEADS

    def read(self) -> Steps[None]:
        """Read parameters up to the end of the call, or of the text if the model ended it."""
        cur, form = self._cur, self._form
        tags = markers_of(frozenset((*form.inner, form.call, *form.openers)))
        while True:
            yield from cur.space()
            stop = ""
            if not (yield from self.lacks_tag()):
                stop = yield from cur.until(tags, self.text.append)
                if stop == "" and cur.cut:
                    raise EndOfText
                if stop in ("", form.call, *form.openers):
                    return
                if form.meaning(stop) != form.parameter:
                    self.ended_by = cur.advance(len(stop))
                    return
            mark = cur.mark()
            cur.advance(len(stop))
            try:
                self._key, attribute = yield from _tag(cur, form, self._known)
                if not self._key or not self._is_meant(stop, self._key):
                    raise NotACall
                cur.release(mark)
            except EndOfText:
                if cur.cut:
                    raise
                cur.rollback(mark)
                self.text.append(cur.advance_all())
                return
            except NotACall:
                cur.rollback(mark)
                self.text.append(cur.advance(len(stop)))
                continue
            if attribute != "/":
                yield from self._value()
            value, types = "".join(self._parts), self._tools.types(self._name, self._key)
            types -= {"string"} if attribute else set()
            self.arguments[self._key] = quote(value) if attribute in _STRING else to_json(value, types)
            self._parts.clear()
            self._key = ""

    def lacks_tag(self) -> Steps[bool]:
        """Return whether a key of the tool follows that has only its closing tag, as GLM's have one. An
        opening tag of a call in place of its own is read."""
        cur, form = self._cur, self._form
        if not form.value:
            return False
        mark = cur.mark()
        yield from cur.literal(form.call)
        at_key = cur.mark()
        key = yield from cur.matching(_KEY)
        if not (yield from cur.close(form.tag_end)) or key not in self._known or key in self._keys:
            cur.rollback(mark)
            return False
        cur.rollback(at_key)
        cur.release(mark)
        return True

    def partial(self) -> str:
        """Return the arguments as far as they have come, without their end."""
        value = quote("".join(self._parts).lstrip())[:-1]
        rest = [f"{quote(self._key)}: {value}"] if self._key else []
        return "{" + ", ".join([*_items(self.arguments), *rest])

    def _value(self) -> Steps[None]:
        """Read a value and its closing tag into `_parts`; a missing one is tolerated if that is certain."""
        cur, form, parts = self._cur, self._form, self._parts
        if form.cdata and (yield from cur.literal(CDATA)):
            yield from self._cdata()
            return
        self._quotes, self._quoted = False, 0
        stops = markers_of(frozenset(form.tags))
        while True:
            stop = yield from cur.until(stops, parts.append)
            if not stop:
                if cur.cut:
                    raise EndOfText
                break
            mark = cur.mark()
            cur.advance(len(stop))
            ends = yield from self._ends_here(stop)
            cur.rollback(mark)
            if ends:
                break
            parts.append(cur.advance(len(stop)))
            opens = stop in form.begins and (yield from self._opens(stop))
            self._quotes = self._quotes or opens
            if form.meaning(stop) == form.parameter:
                self._quoted += opens
            elif stop == form.parameter_end and self._quoted:
                self._quoted -= 1
        text = "".join(parts)
        if stop == form.parameter_end:
            cur.advance(len(stop))
        else:
            # Models write no closing tag, a broken one, or one with the name of the parameter.
            text = form.broken_end.sub("", text)
            if f"<{self._key}" not in text:
                text = re.sub(rf"</{re.escape(self._key)}>\s*\Z", "", text)
            text = text.rstrip() if form.value else text
        if form.trim:
            start = 2 if text.startswith("\r\n") else 1 if text.startswith("\n") else 0
            text = text[start:]
            text = text.removesuffix("\r\n") if text.endswith("\r\n") else text.removesuffix("\n")
        parts[:] = [text]

    def _cdata(self) -> Steps[None]:
        """Read the rest of a CDATA section and the closing tag; `]]>` elsewhere is text."""
        cur, end = self._cur, self._form.parameter_end
        while (yield from cur.until(_CDATA_END, self._parts.append)):
            mark = cur.mark()
            cur.advance(3)
            yield from cur.space(_GAP)
            if (yield from cur.literal(end)) and (yield from self._ends_here(end)):
                cur.rollback(mark)
                cur.advance(3)
                yield from cur.close(end)
                return
            cur.rollback(mark)
            self._parts.append(cur.advance(3))
        if cur.cut:
            raise EndOfText

    def _ends_here(self, stop: str) -> Steps[bool]:
        """Return whether this tag, which was read, ends the value."""
        form, meaning = self._form, self._form.meaning(stop)
        if meaning in (form.call, *form.openers):
            return (yield from self._begins_call(meaning))
        if meaning != form.parameter:
            return (yield from self._closes("" if stop == form.parameter_end else stop))
        key = yield from self._next_key()
        if self._known or stop != meaning:
            missing = key in self._known and key not in self._keys
        else:
            text = "".join(self._parts)
            missing = (
                bool(text.strip()) and text.endswith("\n") and self._form.call not in text and good_name(key)
            )
        return missing and not (yield from self._nested(key))

    def _closes(self, end: str) -> Steps[bool]:
        """Return whether a value ends before the tags that follow. `end`: the end of a call was read, and no
        closing tag before it."""
        cur, form = self._cur, self._form
        closed, last = not end, end
        while True:
            yield from cur.space(_GAP)
            spelling = yield from cur.either(form.tags)
            tag = form.meaning(spelling)
            if tag in form.openers:
                continue
            if tag in form.ends:
                closed, last = closed or tag != end, tag
                continue
            if tag == form.parameter_end or (tag == form.parameter and last):
                return False
            if tag == form.parameter:
                key = yield from self._next_key()
                if not self._is_meant(spelling, key):
                    return False
                if not self._quoted:
                    return True
                return key not in self._keys and not (yield from self._nested(key))
            if tag == form.call:
                return not self._quotes or not (yield from self._goes_on())
            if (yield from cur.peek()) == "" or (cur.cut and self._cut_tag()):
                return True
            if closed and not last and (yield from self.lacks_tag()):
                return True
            return bool(last) and closed and not (yield from self._goes_on())

    def _cut_tag(self) -> bool:
        """Return whether the answer was cut inside the next tag."""
        rest = self._cur.buf[self._cur.pos :]
        return self._cur.ended and any(tag.startswith(rest) for tag in self._form.inner)

    def _begins_call(self, stop: str) -> Steps[bool]:
        """Return whether a call of another tool begins here, with the ends of this one left out: each closing
        tag that follows has its opening tag."""
        cur, form = self._cur, self._form
        if form.trim and not (self._parts and self._parts[-1].endswith("\n")):
            return False
        while stop in form.openers:
            yield from cur.space()
            stop = form.meaning((yield from cur.either(form.tags)))
        if stop != form.call or not self._look_aheads:
            return False
        self._look_aheads -= 1
        try:
            name = yield from call_name(cur, self._tools, form)
        except NotACall:
            return False
        if not good_name(name) or self._tools.lacks(name):
            return False
        return not (yield from self._goes_on(_MAX_TEXT_OF_CALLS, True)) and not cur.cut

    def _goes_on(self, limit: int = _MAX_TEXT_AFTER_CALL, begins: bool = False) -> Steps[bool]:
        """Return whether the text after what looks like the end of a call, or the beginning, is still within
        a value.

        It is if a closing tag follows without its opening tag. A value that quotes one call may quote more.
        """
        cur, form = self._cur, self._form
        tags = markers_of(frozenset((form.parameter_end, *form.begins)) - frozenset(form.openers))
        inside = False
        quotes = begins or self._quotes
        while limit > 0:
            start = cur.offset
            try:
                stop = yield from cur.until(tags, _nowhere, limit)
            except NotACall:
                return begins
            tag = form.meaning(stop)
            if tag == form.parameter_end and not inside:
                return True
            if not tag or (tag == form.call and not quotes):
                return False
            cur.advance(len(stop))
            if tag == form.parameter_end or (tag == form.parameter and (yield from self._opens(stop))):
                inside = tag == form.parameter
            limit -= cur.offset - start
        return begins

    def _nested(self, key: str) -> Steps[bool]:
        """Return whether an opening tag in the value is text: the tags after it close two parameters at once,
        or repeat a key."""
        if not self._look_aheads:
            return True
        self._look_aheads -= 1
        cur, form = self._cur, self._form
        keys = {*self._keys, key}
        end = markers_of(frozenset((form.parameter_end,)))
        while (yield from cur.until(end, _nowhere)):
            cur.advance(len(form.parameter_end))
            last = ""
            while True:
                yield from cur.space(_GAP)
                tag = form.meaning((yield from cur.either(form.tags)))
                if tag == form.parameter_end:
                    return True
                if tag not in form.ends:
                    break
                last = tag
            if last:
                return (yield from self._goes_on())
            if tag == form.parameter:
                key = yield from self._next_key()
                if key in keys:
                    return True
                keys.add(key)
        return False

    def _is_meant(self, spelling: str, key: str) -> bool:
        """Return whether an opening tag with this key is one; a wrong spelling only names what is missing."""
        return self._form.meaning(spelling) == spelling or (key in self._known and key not in self.arguments)

    def _opens(self, spelling: str) -> Steps[bool]:
        """Return whether a tag whose beginning was read opens something: a wrong spelling needs a name."""
        if spelling == self._form.meaning(spelling):
            return True
        mark, key = self._cur.mark(), ""
        with suppress(EndOfText):
            key = yield from self._next_key()
        self._cur.rollback(mark)
        return good_name(key)

    @property
    def _keys(self) -> Set[str]:
        return {*self.arguments, self._key}

    def _next_key(self) -> Steps[str]:
        """Read the rest of an opening tag; return "" if it is none."""
        try:
            return (yield from _tag(self._cur, self._form, self._known))[0]
        except NotACall:
            return ""


def _nowhere(text: str) -> None:
    """Discard text that is only looked at."""


def _items(arguments: dict[str, str]) -> list[str]:
    return [f"{quote(key)}: {value}" for key, value in arguments.items()]


def _tag(cur: Cursor, form: Form, names: Container[str] = ()) -> Steps[tuple[str, str]]:
    """Read the rest of an opening tag; return its name, and the attribute for its type, or "/" if the tag
    closes itself. Models leave out a ">" at the end of a line, and before the value of a known name."""
    parts: list[str] = []
    mark = cur.mark()
    ends = (form.tag_end, form.value)
    line = "\n" if form.tag_end == ">" else ""
    stop = yield from cur.until(markers_of(frozenset((*ends, line))), parts.append, _MAX_TAG)
    if line and stop == line and (yield from _goes_on_in_next_line(cur)):
        stop = yield from cur.until(markers_of(frozenset(ends)), parts.append, _MAX_TAG)
    if not stop:
        raise EndOfText
    text = "".join(parts).rpartition(form.parameter)[2]  # opened twice
    begun = _KEY_AND_VALUE.match(text) if line and not form.quoted else None
    if begun and begun[1] in names:
        rest = text[begun.end() :]
        if not (stop == form.tag_end and _ATTRIBUTES.fullmatch(rest)):
            cur.rollback(mark)
            cur.advance(len("".join(parts)) - len(rest))
            return begun[1], ""
        text = begun[1]
    cur.release(mark)
    if stop == form.tag_end:
        cur.advance(len(stop))
    if form.value:
        while (yield from cur.close(form.tag_end)):  # closed twice
            pass
        yield from cur.space()
        if (
            not (yield from cur.literal(form.value))
            and cur.ended
            and form.value.startswith(cur.buf[cur.pos :])
        ):
            raise EndOfText
    if not form.quoted:
        match = _QUOTED.match(text)  # what follows are attributes
        name = match[2] if match else text.strip().removesuffix("/")
        return name.strip().strip("\"'").rstrip("="), "/" if text.rstrip().endswith("/") else ""
    match = _ATTRIBUTE.fullmatch(text)
    if match is None:
        raise NotACall
    name = match[1].strip()
    for escape, char in form.escapes:
        name = name.replace(escape, char)
    return name, match[3] or match[2] or ""


def _goes_on_in_next_line(cur: Cursor) -> Steps[bool]:
    mark = cur.mark()
    yield from cur.space()
    part = yield from cur.either((">", "/>", "string="))
    cur.rollback(mark)
    return bool(part)
