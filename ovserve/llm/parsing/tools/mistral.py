"""Mistral's dialects, which begin with the token `[TOOL_CALLS]`."""

from __future__ import annotations

from ovserve.llm.parsing.core.cursor import Cursor, Markers, NotACall, Steps
from ovserve.llm.parsing.core.dialect import ToolDialect
from ovserve.llm.parsing.core.framed import call, header
from ovserve.llm.parsing.core.guide import Guide
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools
from ovserve.llm.parsing.json.call import Keys, call_list, unmarked

_AFTER_NAME = Markers(("[ARGS]", "[CALL_ID]", "{", "[TOOL_CALLS]", "\n\n"))
_AFTER_ID = Markers(("[ARGS]", "{", "[TOOL_CALLS]"))
_NEXT = Markers(("[TOOL_CALLS]", "</s>"))


def good_id(id: str) -> bool:
    """Return whether Mistral's templates accept this id."""
    return len(id) == 9 and id.isascii() and id.isalnum()


_KEYS = Keys(good_id=good_id)


class Devstral(ToolDialect):
    """`[TOOL_CALLS]name[ARGS]{...}`. Devstral, Mistral Small 3.x, Ministral, Magistral.

    `[CALL_ID]` (Small 3.2) may stand between, `[ARGS]` may be missing (tokenizer v11), and older models put a
    JSON list after the token. Arguments are not validated: see `framed.py`.

    Source: read 2026-11-22,
    https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/devstral/tool_parser.cpp
    """

    name = "devstral"
    markers = ("[TOOL_CALLS]",)
    erase = ("</s>",)
    guide = Guide("[TOOL_CALLS]NAME[ARGS]", "", trigger="[TOOL_CALLS]")

    def matches(self, template: str) -> bool:
        return "[TOOL_CALLS]" in template and "[ARGS]" in template

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        yield from cur.expect("[TOOL_CALLS]")
        yield from _tagged(cur, out)


def _tagged(cur: Cursor, out: Output) -> Steps[None]:
    yield from cur.space()
    char = yield from cur.peek()
    if char == "[":
        yield from call_list(cur, out, _KEYS)
        return
    if char == "{":
        raise NotACall
    name, marker = yield from header(cur, _AFTER_NAME)
    id = None
    if marker == "[CALL_ID]":
        cur.advance(len(marker))
        id, marker = yield from header(cur, _AFTER_ID)
    if marker == "[ARGS]":
        cur.advance(len(marker))
    elif marker != "{":
        raise NotACall
    yield from call(cur, out, name.strip(), _NEXT, id=id and id.strip())


class Mistral(ToolDialect):
    """A JSON list after `[TOOL_CALLS]`. Mistral 7B v0.3, Nemo, Small 2409; v11 and later as devstral.

    The token is often lost, so an answer that starts with `[{` may be one too, if it names a tool of the
    request.

    Source: read 2026-11-22,
    https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/mistral/tool_parser.cpp
    """

    name = "mistral"
    markers = ("[TOOL_CALLS]",)
    erase = ("</s>",)
    bare = "["
    guide = Guide(
        '{"name": "NAME", "arguments": ',
        "}",
        separator=", ",
        block=("[TOOL_CALLS] [", "]"),
        trigger="[TOOL_CALLS]",
    )

    def matches(self, template: str) -> bool:
        return "[TOOL_CALLS]" in template or "[AVAILABLE_TOOLS]" in template

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        if (yield from cur.literal("[TOOL_CALLS]")):
            yield from _tagged(cur, out)
        else:
            yield from call_list(cur, out, unmarked(tools, good_id))
