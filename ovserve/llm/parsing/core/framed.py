"""Calls with a marker between name and arguments: `[TOOL_CALLS]f[ARGS]{...}` and similar.

Devstral, mistral, kimi_k2, the deepseek family, functionary and gptoss write them. The marker makes the name
certain, so the arguments are passed on as written even if they are not JSON: the client sees
them and can answer with an error that the model understands.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ovserve.llm.parsing.core.cursor import Cursor, EndOfText, Markers, NotACall, Steps
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.json.loose import value

_NAME = re.compile(r"[^\s<>{}\[\]()\"'`,;=|]+")
_MAX_HEADER = 512


def good_name(name: str) -> bool:
    """Return whether this can be a function's name; prose after a marker is not."""
    return _NAME.fullmatch(name) is not None


def header(cur: Cursor, markers: Markers) -> Steps[tuple[str, str]]:
    """Read up to a marker and return (text before, marker). Raises NotACall if it is too far away."""
    parts: list[str] = []
    marker = yield from cur.until(markers, parts.append, _MAX_HEADER)
    if not marker:
        raise EndOfText
    return "".join(parts), marker


def arguments(cur: Cursor, sink: Callable[[str], object], closers: Markers) -> Steps[None]:
    """Read a call's arguments up to a closer (not read), or to the end of the text.

    Text that is not JSON is passed on unchanged, up to the closer. Between complete JSON and the closer only
    white space is expected; other text is left unread.
    """
    yield from cur.space()
    char = yield from cur.peek()
    wrote = False

    def pass_on(text: str) -> None:
        nonlocal wrote
        wrote = wrote or bool(text)
        sink(text)

    if char == "{":
        try:
            yield from value(cur, pass_on, closers, as_written=True)
            return
        except EndOfText:
            if cur.cut:
                raise
            return
        except NotACall:
            pass
    held: list[str] = []  # white space before the closer is not part of the arguments

    def collect(text: str) -> None:
        body = text.rstrip()
        if body:
            pass_on("".join(held) + body)
            held.clear()
        if len(body) < len(text):
            held.append(text[len(body) :])

    marker = yield from cur.until(closers, collect)
    if not marker and cur.cut:
        raise EndOfText
    if not wrote:
        sink("{}")


def call(cur: Cursor, out: Output, name: str, closers: Markers, *, id: str | None = None) -> Steps[None]:
    """Read one call from its arguments on; its closer is left unread."""
    if not good_name(name):
        raise NotACall
    out.start_call(name, id)
    yield from arguments(cur, out.arguments, closers)
    out.end_call()
