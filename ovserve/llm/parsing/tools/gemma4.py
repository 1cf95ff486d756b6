"""gemma4: `<|tool_call>call:f{k:<|"|>text<|"|>,n:2}<tool_call|>`. Google Gemma 4.

Keys are bare words, strings stand between delimiters of their own and hold raw text, everything else is as in
JSON. Without the token, `call:f{...}` is text.

Source: read 2026-11-22, https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/gemma4/gemma4_tool_parser.cpp
"""

from __future__ import annotations

from ovserve.llm.parsing.cursor import Cursor, EndOfText, Markers, NotACall, Steps
from ovserve.llm.parsing.dialect import ToolDialect, call, good_name, header
from ovserve.llm.parsing.guide import Guide, listed
from ovserve.llm.parsing.json_call import Keys, call_list, call_object, unmarked
from ovserve.llm.parsing.json_scan import as_json, quote
from ovserve.llm.parsing.literal import Tools
from ovserve.llm.parsing.loose_json import string, value
from ovserve.llm.parsing.output import Output

# Mistral's dialects, which begin with the token `[TOOL_CALLS]`.


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
    JSON list after the token. Arguments are not validated: see `dialect.py`.

    Source: read 2026-11-22,
    https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/devstral/tool_parser.cpp
    """

    name = "devstral"
    markers = ("[TOOL_CALLS]",)
    inner = ("[ARGS]", "[CALL_ID]")
    erase = ("</s>",)
    guide = Guide("[TOOL_CALLS]NAME[ARGS]", "", trigger="[TOOL_CALLS]")
    template_marks = ("[TOOL_CALLS]", "[ARGS]")

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
        yield from call_object(cur, out, _KEYS)
        return
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
    inner = ("[ARGS]", "[CALL_ID]")
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


_OPEN, _CLOSE, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_NAME_END = Markers(("{", _CLOSE, _OPEN))
_KEY_END = Markers((":", "}", _CLOSE, _OPEN))
_WORD_END = Markers((",", "}", "]", _CLOSE, _OPEN, _QUOTE))
_STRING_END = Markers((_QUOTE,))
_MAX_DEPTH = 60


class Gemma4(ToolDialect):
    name = "gemma4"
    markers = (_OPEN,)
    inner = (_QUOTE,)
    erase = ("<turn|>", "<|tool_response>", "<eos>")
    guide = Guide(
        "<|tool_call>call:NAME{",
        "}<tool_call|>",
        trigger="<|tool_call>",
        arguments=listed("NAME:", ",", _QUOTE),
    )
    template_marks = ("<|tool_call>call:",)

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        yield from cur.expect(_OPEN)
        if (yield from cur.close(_CLOSE)):
            return
        yield from cur.space()
        yield from cur.expect("call:")
        while True:
            name = (yield from header(cur, _NAME_END))[0].strip()
            if not good_name(name):
                raise NotACall
            yield from cur.expect("{")
            out.start_call(name)
            out.arguments((yield from _mapping(cur, 0)))
            out.end_call()
            yield from cur.close(",")
            if not (yield from cur.close("call:")):
                break
        yield from cur.close(_CLOSE)


def _mapping(cur: Cursor, depth: int) -> Steps[str]:
    """Parse from after the brace; return its JSON text."""
    items: dict[str, str] = {}
    while True:
        yield from cur.space()
        if (yield from cur.literal("}")) or (yield from _ended(cur)):
            return "{" + ", ".join(f"{quote(key)}: {item}" for key, item in items.items()) + "}"
        if (yield from cur.literal(_QUOTE)):
            key = yield from _text(cur)
            yield from cur.space()
        elif (yield from cur.peek()) == '"':
            key = yield from string(cur)
            yield from cur.space()
        else:
            key = (yield from header(cur, _KEY_END))[0].strip()
        yield from cur.expect(":")
        items[key] = yield from _item(cur, depth + 1)
        yield from _comma(cur, "}")


def _item(cur: Cursor, depth: int) -> Steps[str]:
    if depth > _MAX_DEPTH:
        raise NotACall
    yield from cur.space()
    if (yield from cur.literal(_QUOTE)):
        return quote((yield from _text(cur)))
    if (yield from cur.literal("{")):
        return (yield from _mapping(cur, depth))
    if (yield from cur.literal("[")):
        items: list[str] = []
        while True:
            yield from cur.space()
            if (yield from cur.literal("]")) or (yield from _ended(cur)):
                return f"[{', '.join(items)}]"
            items.append((yield from _item(cur, depth + 1)))
            yield from _comma(cur, "]")
    if (yield from cur.peek()) == '"':
        parts: list[str] = []
        yield from value(cur, parts.append)
        return "".join(parts)
    return (yield from _word(cur))


def _word(cur: Cursor) -> Steps[str]:
    """A number, true, false, null; other bare words are text that lost its delimiters."""
    parts: list[str] = []
    if not (yield from cur.until(_WORD_END, parts.append)):
        raise EndOfText
    word = "".join(parts).strip()
    if word in ("None", "True", "False"):
        return {"None": "null", "True": "true", "False": "false"}[word]
    return as_json(word) or quote(word)


def _text(cur: Cursor) -> Steps[str]:
    """Read the rest of a string. A delimiter ends it only before something that may follow a value."""
    parts: list[str] = []
    while (yield from cur.until(_STRING_END, parts.append)):
        mark = cur.mark()
        cur.advance(len(_QUOTE))
        yield from cur.space()
        char = yield from cur.peek()
        ends = not char or char in ",:}]" or (yield from _ended(cur))
        cur.rollback(mark)
        text = cur.advance(len(_QUOTE))
        if ends:
            return "".join(parts)
        parts.append(text)
    raise EndOfText


def _comma(cur: Cursor, close: str) -> Steps[None]:
    yield from cur.space()
    if (yield from cur.peek()) != close and not (yield from _ended(cur)):
        yield from cur.expect(",")


def _ended(cur: Cursor) -> Steps[bool]:
    """Return whether the call ends here, with brackets left open. It consumes nothing."""
    mark = cur.mark()
    closed = yield from cur.literal(_CLOSE)
    at_end = cur.ended and not cur.cut and cur.pos >= len(cur.buf)
    cur.rollback(mark)
    return closed or at_end
