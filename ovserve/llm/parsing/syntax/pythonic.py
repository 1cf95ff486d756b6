"""Calls written as Python, `[f(a=1), g()]`, by lfm2, pythonic and olmo3.

Each call is sent when it is complete, because its arguments are converted to JSON. A broken call does not
affect its siblings.
"""

from __future__ import annotations

import re

from ovserve.llm.parsing.core.cursor import Cursor, EndOfText, Markers, NotACall, Steps
from ovserve.llm.parsing.core.dialect import attempt
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools
from ovserve.llm.parsing.json.scan import quote
from ovserve.llm.parsing.syntax.literal import literal

_NAME = re.compile(r"[\w.\-]+")
_KEY = re.compile(r"[^=,:()\[\]{}'\"<>|\n]+")  # schemas have other names than Python, such as `$filter`
_MAX_NAME = 256


def call(cur: Cursor, out: Output, tools: Tools | None = None) -> Steps[None]:
    """Read one call, `name(key=literal, ...)`; of one of these tools, if they are given."""
    name = yield from cur.matching(_NAME, _MAX_NAME)
    if not name:
        raise cur.failure()
    if not (name[0].isalpha() or name[0] == "_"):
        raise NotACall
    yield from cur.space()
    yield from cur.expect("(")
    if tools is not None:
        if name not in tools:
            raise NotACall
        cur.sure = True
    arguments: dict[str, str] = {}
    while True:
        yield from cur.space()
        if (yield from cur.literal(")")):
            break
        key = yield from cur.matching(_KEY, _MAX_NAME)
        if not key:
            raise cur.failure()
        yield from cur.expect("=")
        arguments[key.rstrip()] = yield from literal(cur)
        yield from cur.space()
        if (yield from cur.peek()) != ")":
            yield from cur.expect(",")
    out.start_call(name)
    out.arguments("{" + ", ".join(f"{quote(key)}: {value}" for key, value in arguments.items()) + "}")
    out.end_call()


def bracketed(cur: Cursor, out: Output, unmarked: Tools | None = None) -> Steps[None]:
    """Read `[call, call]`. `unmarked`: without a marker, anything but a call of these tools makes it text."""
    good = 0
    strict = unmarked is not None
    skipped = False
    yield from cur.expect("[")
    try:
        while True:
            yield from cur.space()
            if (yield from cur.literal("]")):
                break
            if (yield from attempt(cur, out, call(cur, out, unmarked))):
                good += 1
            elif strict and not good:
                raise NotACall
            else:
                skipped = True
                yield from _skip(cur)
            yield from cur.space()
            if (yield from cur.peek()) != "]":
                yield from cur.expect(",")
    except EndOfText:
        if not good:
            raise
        cur.advance_all()  # truncated after good ones
    except NotACall:
        if not good:
            raise
    if not good and (strict or skipped):
        raise NotACall


def sequence(cur: Cursor, out: Output, end: str) -> Steps[None]:
    """Read calls without brackets, separated by white space, commas or semicolons, and the end tag.

    Other text after a good call is dropped up to the end tag, and is content without an end tag.
    """
    good = 0
    rest: list[str] = []
    ends = Markers((end,))
    while True:
        yield from cur.space()
        if (yield from cur.either((",", ";"))):
            continue
        if (yield from cur.close(end)):
            break
        if (yield from attempt(cur, out, call(cur, out))):
            good += 1
        elif not good:
            raise cur.failure()
        elif not (yield from cur.until(ends, rest.append)):
            out.content("".join(rest))
            return
    if not good:
        raise NotACall


def _skip(cur: Cursor) -> Steps[None]:
    """Skip a broken call, to the comma or bracket after it, aware of brackets and strings."""
    depth = 0
    quoted = ""
    moved = False
    while True:
        char = yield from cur.peek()
        if not char:
            raise EndOfText
        if not depth and not quoted and char in ",]":
            if not moved:
                raise NotACall
            return
        moved = True
        cur.advance(1)
        if char == "\\" and quoted:
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
