"""gemma4: `<|tool_call>call:f{k:<|"|>text<|"|>,n:2}<tool_call|>`. Google Gemma 4.

Keys are bare words, strings stand between delimiters of their own and hold raw text, everything else is as in
JSON. Without the token, `call:f{...}` is text. In long conversations models also write `call:f(k='text')`, in
part or all of it, and leave delimiters out.

Source: read 2026-11-22, https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/gemma4/gemma4_tool_parser.cpp;
the other forms: read 2026-11-29, https://github.com/vllm-project/vllm/issues/53642, 53431, 51284, 44715,
https://github.com/ollama/ollama/issues/15315, 17882, https://github.com/sgl-project/sglang/pull/39240,
https://github.com/hybridgroup/yzma/pull/243
"""

from __future__ import annotations

import re
from collections.abc import Set
from functools import partial

from ovserve.llm.parsing.cursor import Cursor, EndOfText, Markers, NotACall, Steps
from ovserve.llm.parsing.dialect import ToolDialect, attempt, call, good_name, header
from ovserve.llm.parsing.guide import Guide, json_list, listed
from ovserve.llm.parsing.json_call import Keys, call_list, call_object, stray, unmarked
from ovserve.llm.parsing.json_text import as_json, quote
from ovserve.llm.parsing.literal import Tools, literal
from ovserve.llm.parsing.loose_json import string, value
from ovserve.llm.parsing.output import Output
from ovserve.llm.parsing.tools.pythonic import argument_ends

# Mistral's dialects, which begin with the token `[TOOL_CALLS]`.


_AFTER_NAME = Markers(("[ARGS]", "[CALL_ID]", "{", "[TOOL_CALLS]", "\n\n"))
_AFTER_ID = Markers(("[ARGS]", "{", "[TOOL_CALLS]"))
_NEXT = Markers(("[TOOL_CALLS]", "</s>", "[/THINK]"))


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
    guide = json_list("[TOOL_CALLS] ")

    def matches(self, template: str) -> bool:
        return "[TOOL_CALLS]" in template or "[AVAILABLE_TOOLS]" in template

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        if (yield from cur.literal("[TOOL_CALLS]")):
            yield from _tagged(cur, out)
        else:
            yield from call_list(cur, out, unmarked(tools, good_id))


_OPEN, _CLOSE, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_BRACKETS = {"{": "}", "(": ")"}
_NAME_END = Markers((*_BRACKETS, _CLOSE, _OPEN))
_KEY_END = Markers((":", "=", ",", "}", ")", _CLOSE, _OPEN))
_WORD_END = {close: Markers((",", "}", "]", close, _CLOSE, _OPEN, _QUOTE)) for close in _BRACKETS.values()}
_DELIMITER = Markers((_QUOTE,))
_STRING_END = Markers((_QUOTE, _CLOSE))
_CALL_END = Markers((_CLOSE, _OPEN))
_WORD = re.compile(r"[\w.$@-]+")
_MAX_DEPTH = 60
_NEXT_KEY = re.compile(r",\s*([^\s,:=]+)\s*[:=]")
_OTHER_KEY = re.compile(r",\s*[\w.$@-]+\s*[:=]\s*$")
_WORD_AND_KEY = re.compile(
    r"(-?\d[\d.]*(?:[eE][+-]?\d+)?|true|false|null|True|False|None)(\s*)([\w.$@-]+)\s*[:=]"
)
_NEXT_CALL = {close: re.compile(rf"{re.escape(close)}[\s,]*call:") for close in _BRACKETS.values()}
_MAX_BARE_STRINGS = 64  # per call; the end of each is looked for in the rest of the call
_MAX_LOOK_AHEADS = 16  # per call, for the end of a string in quotes that has none


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
        if not (yield from cur.literal(":")):
            yield from cur.expect("call:")
        while True:
            name = (yield from header(cur, _NAME_END))[0].strip()
            bracket = yield from cur.either(_BRACKETS)
            if not good_name(name) or not (bracket or name in tools):
                raise NotACall
            if tools.lacks(name) and (last := re.split("[:.]", name)[-1]) in tools:
                name = last  # after the names of servers
            out.start_call(name)
            arguments = _Arguments(cur, tools, name, _BRACKETS.get(bracket, ""))
            try:
                out.arguments((yield from arguments.parse()))
            except EndOfText:
                if cur.cut:
                    out.arguments(arguments.partial())
                raise
            out.end_call()
            yield from cur.close(",")
            if not (yield from cur.close("call:")):
                break
        if not (yield from cur.close(_CLOSE)):
            yield from attempt(cur, out, stray(cur, (_CLOSE,)))


class _Arguments:
    """The arguments of one call, which a bracket closes, as JSON text."""

    def __init__(self, cur: Cursor, tools: Tools, name: str, close: str) -> None:
        self._cur, self._tools, self._name, self._close = cur, tools, name, close
        self._look_aheads, self._bare_strings = _MAX_LOOK_AHEADS, _MAX_BARE_STRINGS
        self._items: dict[str, str] = {}  # of the outermost object, as JSON
        self._key = ""  # of the string that is read, which is not in an inner object or list
        self._parts: list[str] = []  # of that string

    def partial(self) -> str:
        """Return the arguments as far as they have come, without their end."""
        items = [f"{quote(key)}: {item}" for key, item in self._items.items()]
        if self._key and self._parts:
            items.append(f"{quote(self._key)}: {quote(''.join(self._parts))[:-1]}")
        return "{" + ", ".join(items)

    def parse(self) -> Steps[str]:
        cur = self._cur
        if not self._close:
            return "{}"
        yield from cur.space()
        if self._close == ")" and (yield from cur.literal("{")):
            self._close = "}"
            arguments = yield from self._mapping(0, "}")
            yield from cur.close(")")
            return arguments
        return (yield from self._mapping(0, self._close))

    def _mapping(self, depth: int, close: str) -> Steps[str]:
        cur = self._cur
        items = {} if depth else self._items
        while True:
            yield from cur.space()
            if (yield from cur.literal(close)) or (yield from _ended(cur)):
                return "{" + ", ".join(f"{quote(key)}: {item}" for key, item in items.items()) + "}"
            mark = cur.mark()
            try:
                key = yield from self._read_key()
                cur.release(mark)
            except NotACall as failure:  # a value without a key, which only one parameter can have
                unread = self._unread()
                if depth or len(unread) != 1 or (cur.cut and isinstance(failure, EndOfText)):
                    raise
                cur.rollback(mark)
                (key,) = unread
            types = self._tools.types(self._name, key) if depth == 0 else frozenset()
            if not depth:
                self._key, self._parts = key, []
            if "string" in types <= {"string", "null"}:
                items[key] = yield from self._string(key)
            else:
                items[key] = yield from self._item(depth + 1, close)
            if not depth:
                self._key = ""
            yield from cur.space()
            yield from cur.literal(",")  # left out by models now and then

    def _read_key(self) -> Steps[str]:
        cur = self._cur
        if (yield from cur.literal(_QUOTE)):
            key = yield from self._text(0)
            yield from cur.space()
        elif (yield from cur.peek()) in ("'", '"'):
            key = yield from string(cur)
            yield from cur.space()
        else:
            key = (yield from header(cur, _KEY_END))[0].strip()
        if not (yield from cur.literal("=")):
            yield from cur.expect(":")
        return key

    def _item(self, depth: int, outer: str) -> Steps[str]:
        """Read a value; `outer` closes what it stands in."""
        cur = self._cur
        if depth > _MAX_DEPTH:
            raise NotACall
        yield from cur.space()
        if (yield from cur.literal(_QUOTE)):
            return quote((yield from self._text(depth)))
        if (yield from cur.literal("{")):
            return (yield from self._mapping(depth, "}"))
        if (yield from cur.literal("[")):
            items: list[str] = []
            while True:
                yield from cur.space()
                if (yield from cur.literal("]")) or (yield from _ended(cur)):
                    return f"[{', '.join(items)}]"
                items.append((yield from self._item(depth + 1, "]")))
                yield from _comma(cur, "]")
        if (yield from cur.peek()) in ("'", '"'):
            return (yield from self._quoted(depth))
        return (yield from self._word(outer))

    def _word(self, outer: str) -> Steps[str]:
        """A number, true, false, null; other bare words are text that lost its delimiters, or the first one.

        A comma in the text of an object's member is part of it unless a key follows.
        """
        cur, parts = self._cur, list[str]()
        mark = cur.mark()
        while True:
            stop = yield from cur.until(_WORD_END[self._close], parts.append)
            if not stop and cur.cut:
                raise EndOfText
            if stop != "," or outer == "]" or (yield from _separates(cur)):
                break
            parts.append(cur.advance(1))
        word = "".join(parts).strip()
        alone = _WORD_AND_KEY.match(word)
        if alone and (alone[2] or alone[3] in self._unread()):  # no comma after it
            cur.rollback(mark)
            word = cur.advance(alone.end(1)).strip()
        elif stop == _QUOTE and word:
            cur.advance(len(stop))
            return quote(word)
        if word in ("None", "True", "False"):
            return {"None": "null", "True": "true", "False": "false"}[word]
        return as_json(word) or quote(word)

    def _string(self, key: str) -> Steps[str]:
        """Read what can only be a string. Without delimiters, a parameter that was not read yet ends it, or
        the call's end."""
        cur = self._cur
        yield from cur.space()
        if (yield from cur.literal(_QUOTE)):
            return quote((yield from self._text(1)))
        if (yield from cur.peek()) in ("'", '"', "{", "["):
            return (yield from self._item(1, self._close))
        self._bare_strings -= 1
        if not self._bare_strings:
            raise NotACall
        mark = cur.mark()
        parts: list[str] = []
        if not (yield from cur.until(_CALL_END, parts.append)) and cur.cut:
            raise EndOfText
        text = "".join(parts)
        end = self._other_key(text) or _NEXT_CALL[self._close].search(text)
        size = end.start() if end else len(_without(self._close, text, 1))
        bare = text.partition(_QUOTE)[0]  # the delimiter ends this string, or begins that of another key
        other = _OTHER_KEY.search(bare)
        size = min(size, other.start() if other else len(bare))
        cur.rollback(mark)
        word = cur.advance(size).strip()
        yield from cur.literal(_QUOTE)
        return "null" if word in ("null", "None") else quote(word)

    def _quoted(self, depth: int) -> Steps[str]:
        """Read a string in quotes of JSON or Python; one that only the delimiter ends is text up to it."""
        cur, parts = self._cur, list[str]()
        mark = cur.mark()
        try:
            if depth == 1 and self._close == ")":
                ends = partial(argument_ends, self._tools, self._name)
                parts.append((yield from literal(cur, ends=ends)))
            else:
                yield from value(cur, parts.append, _CALL_END, outer=depth)
            yield from cur.space()
            follows = yield from cur.peek()
            is_end = follows in (",", "}", "]", self._close, "") or (yield from _ended(cur))
            if not is_end or quote(_QUOTE)[1:-1] in "".join(parts):
                raise NotACall
        except NotACall as failure:
            self._look_aheads -= 1
            if (isinstance(failure, EndOfText) and cur.cut) or not self._look_aheads:
                raise
            cur.rollback(mark)
            cur.advance(1)
            return quote((yield from self._text(depth)))
        cur.release(mark)
        return "".join(parts)

    def _text(self, depth: int) -> Steps[str]:
        """Read the rest of a string, a key's at depth 0. A delimiter ends it only before something that may
        follow; others are quotes. The call's end ends it if the delimiter is missing."""
        cur, stops = self._cur, _STRING_END
        parts = self._parts if depth == 1 else []
        start = cur.mark()
        while stop := (yield from cur.until(stops, parts.append)):
            text = "".join(parts) if depth == 1 and stops is _STRING_END and '"' not in parts else ""
            if (key := self._other_key(text)) and (stop == _CLOSE or key.end() == len(text.rstrip())):
                cur.rollback(start)
                parts[:] = [cur.advance(key.start())]
                return parts[0]
            mark = cur.mark()
            cur.advance(len(stop))
            if stop == _CLOSE:
                ends = yield from self._is_open()
                cur.rollback(mark)
                if ends:
                    return _without("}])", "".join(parts), depth)
                stops = _DELIMITER
                continue
            stops = _STRING_END
            yield from cur.space()
            char = yield from cur.peek()
            ends = not char or char in (",}]" if depth else ":=") or char == self._close
            ends = ends or (yield from _ended(cur)) or (depth == 1 and (yield from self._next_key()))
            cur.rollback(mark)
            cur.advance(len(stop))
            if ends:
                return "".join(parts)
            parts.append('"')
        if cur.cut:
            raise EndOfText
        return _without("}])", "".join(parts), depth)

    def _unread(self) -> Set[str]:
        return self._tools.parameters(self._name).keys() - self._items.keys()

    def _other_key(self, text: str) -> re.Match[str] | None:
        """Return the first key of a parameter that was not read yet, with the comma before it."""
        others = self._unread() - {self._key}
        return next((match for match in _NEXT_KEY.finditer(text) if match[1] in others), None)

    def _next_key(self) -> Steps[bool]:
        """Return whether another parameter of the tool follows, without a comma. It consumes nothing."""
        cur = self._cur
        mark = cur.mark()
        word = yield from cur.matching(_WORD)
        yield from cur.space()
        separator = yield from cur.either(":=")
        cur.rollback(mark)
        is_new = word != self._key and word not in self._items
        return bool(separator) and is_new and word in self._tools.parameters(self._name)

    def _is_open(self) -> Steps[bool]:
        """Return whether the next delimiter, if any, begins a string of another call."""
        parts: list[str] = []
        if not (yield from self._cur.until(_DELIMITER, parts.append)):
            return True
        between = "".join(parts)
        return _OPEN in between and between.rstrip().endswith((":", "=", "[", ","))


def _without(brackets: str, text: str, count: int) -> str:
    """Return the text without white space and so many closing brackets at its end."""
    text = text.rstrip()
    for _ in range(count):
        text = text[:-1].rstrip() if text and text[-1] in brackets else text
    return text


def _separates(cur: Cursor) -> Steps[bool]:
    """Return whether a key or the end follows this comma. It consumes nothing."""
    mark = cur.mark()
    cur.advance(1)
    yield from cur.space()
    char = yield from cur.peek()
    ends = not char or char in "\"'}])<"
    if not ends:
        yield from cur.matching(_WORD)
        yield from cur.space()
        ends = bool((yield from cur.either(":=")))
    cur.rollback(mark)
    return ends


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
