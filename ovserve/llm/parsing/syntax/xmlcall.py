"""Calls written with one tag per parameter and untyped text between them, as in qwen3coder.

Qwen3coder, seed_oss, minicpm5, minimax_m2, step3, onyx and deepseek_v32 differ in the
spelling of tags. Values are raw text (no entities, no escapes), typed by the tool's
schema. Arguments are sent when the call is complete, because a type can need the whole value.
"""

from __future__ import annotations

import re

import msgspec

from ovserve.llm.parsing.core.cursor import Cursor, EndOfText, Markers, NotACall, Steps
from ovserve.llm.parsing.core.framed import good_name
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools, to_json
from ovserve.llm.parsing.json.scan import quote

_MAX_TAG = 512
_TAG_END = Markers((">",))
_CDATA_END = Markers(("]]>",))
_ATTRIBUTE = re.compile(r'([^"]*)"\s*(?:string\s*=\s*"(true|false)")?\s*')


class Form(msgspec.Struct, frozen=True):
    """The spelling. An opening tag is its prefix, a name (in quotes if `quoted`) and `>`."""

    call: str
    call_end: str
    parameter: str
    parameter_end: str
    closers: tuple[str, ...] = ()  # of the block around the calls
    quoted: bool = True
    trim: bool = True  # one newline next to each tag belongs to the format
    cdata: bool = False


def calls(cur: Cursor, out: Output, tools: Tools, form: Form) -> Steps[None]:
    """Read one call or more, then perhaps the end of the block."""
    yield from cur.space()
    yield from cur.expect(form.call)
    while True:
        closed = yield from call(cur, out, tools, form)
        if closed or (yield from cur.close(*form.closers)):
            return
        if not (yield from cur.close(form.call)):
            return


def call(cur: Cursor, out: Output, tools: Tools, form: Form) -> Steps[bool]:
    """Read one call, after the prefix of its opening tag; return whether the end of the block ended it."""
    name, _ = yield from _tag(cur, form)
    if not good_name(name):
        raise NotACall
    out.start_call(name)
    arguments: dict[str, str] = {}
    key = ""
    parts: list[str] = []
    try:
        while True:
            yield from cur.space()
            tag = yield from cur.either((form.parameter, form.call_end, *form.closers))
            if not tag:
                raise EndOfText if (yield from _cut(cur, form)) else NotACall
            if tag != form.parameter:
                break
            key, is_string = yield from _tag(cur, form)
            yield from _value(cur, tools, form, name, arguments, parts)
            arguments[key] = _typed("".join(parts), tools, name, key, is_string)
            parts.clear()
            key = ""
    except EndOfText:
        if cur.cut:  # send the partial value, visibly incomplete
            rest = [f"{quote(key)}: {quote(''.join(parts).lstrip())[:-1]}"] if key else []
            out.arguments("{" + ", ".join([*_items(arguments), *rest]))
        raise
    out.arguments("{" + ", ".join(_items(arguments)) + "}")
    out.end_call()
    return tag in form.closers


def _items(arguments: dict[str, str]) -> list[str]:
    return [f"{quote(key)}: {value}" for key, value in arguments.items()]


def _cut(cur: Cursor, form: Form) -> Steps[bool]:
    """Return whether the text ends inside a possible next tag."""
    yield from cur.peek()
    rest = cur.buf[cur.pos :]
    tags = (form.parameter, form.call_end, *form.closers)
    return cur.ended and any(tag.startswith(rest) for tag in tags)


def _tag(cur: Cursor, form: Form) -> Steps[tuple[str, str]]:
    """Read the rest of an opening tag; return its name, and DeepSeek's attribute for strings."""
    parts: list[str] = []
    if not (yield from cur.until(_TAG_END, parts.append, _MAX_TAG)):
        raise EndOfText
    cur.advance(1)
    text = "".join(parts)
    if not form.quoted:
        return text.strip().strip("\"'"), ""
    match = _ATTRIBUTE.fullmatch(text)
    if match is None:
        raise NotACall
    return match[1].strip(), match[2] or ""


def _typed(text: str, tools: Tools, tool: str, key: str, is_string: str) -> str:
    if is_string == "true":
        return quote(text)
    types = tools.types(tool, key)
    return to_json(text, types - {"string"} if is_string else types)


def _value(
    cur: Cursor, tools: Tools, form: Form, tool: str, given: dict[str, str], parts: list[str]
) -> Steps[None]:
    """Read a value and its closing tag into `parts`; a missing one is tolerated if that is certain."""
    if form.cdata and (yield from cur.literal("<![CDATA[")):
        if not (yield from cur.until(_CDATA_END, parts.append)):
            raise EndOfText
        cur.advance(3)
        yield from cur.space()
        yield from cur.expect(form.parameter_end)
        return
    stops = Markers((form.parameter_end, form.parameter, form.call_end))
    while True:
        stop = yield from cur.until(stops, parts.append)
        if not stop:
            raise EndOfText
        if stop == form.parameter_end:
            cur.advance(len(stop))
            break
        mark = cur.mark()
        cur.advance(len(stop))
        ends = yield from _ends_here(cur, tools, form, tool, given, parts, stop)
        cur.rollback(mark)
        if ends:
            break
        parts.append(cur.advance(len(stop)))
    if form.trim:
        text = "".join(parts)
        start = 2 if text.startswith("\r\n") else 1 if text.startswith("\n") else 0
        text = text[start:]
        parts[:] = [text.removesuffix("\r\n") if text.endswith("\r\n") else text.removesuffix("\n")]


def _ends_here(
    cur: Cursor, tools: Tools, form: Form, tool: str, given: dict[str, str], parts: list[str], stop: str
) -> Steps[bool]:
    """Return whether this tag inside a value is the format's own, so that the closing tag is missing."""
    if stop == form.call_end:
        yield from cur.space()
        following = yield from cur.either((form.call, *form.closers))
        return bool(following) or (yield from cur.peek()) == ""
    try:
        key, _ = yield from _tag(cur, form)
    except NotACall:
        return False
    known = tools.parameters(tool)
    if known:
        return key in known and key not in given
    return bool(parts) and parts[-1].endswith("\n") and good_name(key)
