"""Dialects with special tokens around a section of calls and around each call in it, or before each tag."""

from __future__ import annotations

import json
import re
from typing import ClassVar, NamedTuple

from ovserve.llm.parsing.cursor import Cursor, EndOfText, Markers, NotACall, Steps, markers_of
from ovserve.llm.parsing.dialect import ToolDialect, arguments, attempt, call, good_name, header
from ovserve.llm.parsing.guide import Guide, tagged
from ovserve.llm.parsing.json_call import call_object, marked_keys
from ovserve.llm.parsing.json_text import as_json, quote
from ovserve.llm.parsing.literal import Tools, to_json
from ovserve.llm.parsing.output import Output

# ruff: noqa: RUF001, RUF002 - these bars are the model's own characters


SECTION, SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, SEPARATOR, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
CLOSERS = Markers((END, BEGIN, SECTION_END))
_NAME_END = Markers((SEPARATOR, BEGIN, END))
_FENCED_NAME_END = Markers(("\n", "```", "{", BEGIN, END))
_FENCE_CLOSERS = Markers(("```", END, BEGIN, SECTION_END))


_MAX_TEXT = 512  # characters that are not part of a call, in one place of a section


class Sections(ToolDialect):
    """Calls between tokens, in a section that has tokens of its own, or in none.

    Models talk in a section now and then, before a call or after one: as in other servers, that is dropped.
    """

    openers: ClassVar[tuple[str, ...]]
    begin: ClassVar[str]
    end: ClassVar[str]
    closers: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls) -> None:
        cls.markers, cls.inner = (*cls.openers, cls.begin), cls.closers

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        section = yield from cur.either(self.openers)
        if not section:
            yield from cur.expect(self.begin)
        elif not (yield from self._next(cur)):
            return
        while True:
            yield from self.call(cur, out, tools)
            yield from cur.close(self.end)
            out.commit()
            if not (yield from (self._next(cur) if section else cur.close(self.begin))):
                break
        yield from cur.close(*self.closers)

    def _next(self, cur: Cursor) -> Steps[bool]:
        """Read up to the next call of a section or its end, tokens included; return whether it is a call."""
        stops = markers_of(frozenset((self.begin, *self.closers)))
        stop = yield from cur.until(stops, lambda text: None, _MAX_TEXT)
        if not stop:
            raise EndOfText
        cur.advance(len(stop))
        return stop == self.begin

    def call(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        """Read one call from after its first token up to its last one."""
        raise NotImplementedError


class Deepseek(Sections):
    openers, closers = (SECTION,), (SECTION_END,)
    begin, end = BEGIN, END
    erase = ("<｜end▁of▁sentence｜>",)

    def matches(self, template: str) -> bool:
        return SECTION in template or BEGIN in template

    def call(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        """Read a call of either version: weights of one are served with the template of the other."""
        name, _ = yield from header(cur, _NAME_END)
        yield from cur.expect(SEPARATOR)
        yield from cur.space()
        if name.strip() != "function" or (yield from cur.peek()) == "{":
            yield from call(cur, out, name.strip(), CLOSERS)
            return
        name, _ = yield from header(cur, _FENCED_NAME_END)
        yield from cur.close("```json", "```")
        yield from call(cur, out, name.strip(), _FENCE_CLOSERS)
        yield from cur.close("```")


class DeepseekV31(Deepseek):
    """`<｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜>`. DeepSeek V3.1 and later.

    Source: read 2026-11-22,
    https://github.com/sgl-project/sglang/blob/09631df1ceb7/python/sglang/srt/function_call/deepseekv31_detector.py
    """

    name = "deepseek_v31"
    guide = Guide(f"{BEGIN}NAME{SEPARATOR}", END, block=(SECTION, SECTION_END), trigger=SECTION)


class DeepseekV3(Deepseek):
    """Like V3.1, with a type before the name and the arguments in a ```json fence. DeepSeek V3, R1.

    Source: read 2026-11-22,
    https://github.com/sgl-project/sglang/blob/01967342ac0b/python/sglang/srt/function_call/deepseekv3_detector.py
    """

    name = "deepseek_v3"
    guide = Guide(
        f"{BEGIN}function{SEPARATOR}NAME\n```json\n",
        f"\n```{END}",
        separator="\n",
        block=(SECTION, SECTION_END),
        trigger=SECTION,
    )

    def matches(self, template: str) -> bool:
        return super().matches(template) and "```json" in template


_KIMI_SECTION = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>")
_KIMI_SECTION_END = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>")
_BEGIN, _ARGUMENTS, _END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_ID = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")
_DAMAGED_ID = re.compile(r"(?:functions[._]?)?(.+?)[:_]?\d*")  # models leave "." and ":" out
# Ids that other servers and clients give.
_NAMELESS = re.compile(r"(?:functions\.?)?:?\d*|(?:call|toolu|chatcmpl-tool)[-_]?\w*|[\da-f]{8}[\da-f-]*")
_AFTER_ID = Markers((_ARGUMENTS, _BEGIN, _END, "{"))
_KIMI_CLOSERS = Markers((_END, _BEGIN, *_KIMI_SECTION_END))


class KimiK2(Sections):
    """`<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`.

    The whole of `functions.name:0` is the call's id; the template wants it back. After ids of another form in
    the conversation, models write such ones: then the arguments hold the name, or only one tool takes them.

    Sources: read 2026-11-22 and 2026-11-30,
    https://github.com/sgl-project/sglang/blob/0351c1fafe4c/python/sglang/srt/function_call/kimik2_detector.py;
    https://github.com/sgl-project/sglang/pull/37775, 25362,
    https://github.com/vllm-project/vllm/pull/32146, https://github.com/exo-explore/exo/issues/2281
    """

    name = "kimi_k2"
    openers, closers = _KIMI_SECTION, _KIMI_SECTION_END
    begin, end = _BEGIN, _END
    erase = ("<|im_end|>",)
    guide = Guide(
        "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        block=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        trigger="<|tool_calls_section_begin|>",
    )
    template_marks = ("<|tool_calls_section_begin|>",)

    def call(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        id = (yield from header(cur, _AFTER_ID))[0].strip()
        if not (yield from cur.literal(_ARGUMENTS)) and (yield from cur.peek()) != "{":
            raise cur.failure()
        match = _ID.fullmatch(id)
        name = match[1] if match else ""
        if tools.lacks(name) and (match := _DAMAGED_ID.fullmatch(id)) and match[1] in tools:
            name = match[1]
        elif tools.lacks(name) and _NAMELESS.fullmatch(id):
            mark, parts = cur.mark(), list[str]()
            yield from attempt(
                cur, Output(cur, hold_space=False), arguments(cur, parts.append, _KIMI_CLOSERS)
            )
            cur.rollback(mark)
            values = json.loads(as_json("".join(parts), "{") or "{}")
            inner = values.get("name")
            if isinstance(inner, str) and inner in tools:
                yield from cur.space()
                yield from call_object(cur, out, marked_keys(tools))
                return
            name = tools.taking(values.keys()) or name
        yield from call(cur, out, name or id, _KIMI_CLOSERS, id=id if ":" in id else None)


_MARK = "]<]minimax[>["  # one token, before each tag
_QUOTED_NAME_END = Markers(('">',))
_MAX_DEPTH = 64
_EMPTY = {"array": "[]", "object": "{}"}


class MiniMaxM3(Sections):
    """minimax_m3: `<invoke name="f"><k>v</k></invoke>`, with a token before each tag. MiniMax M3.

    The members of an object are elements by name, those of an array are `<item>`. An element that comes twice
    is an array too. Values are typed by the tool's schema.

    Source: read 2026-11-30,
    https://github.com/vllm-project/vllm/blob/be37de73a9e1/vllm/tool_parsers/_llm_nom/m3_text.py
    """

    name = "minimax_m3"
    openers, closers = (f"{_MARK}<tool_call>",), (f"{_MARK}</tool_call>",)
    begin, end = f'{_MARK}<invoke name="', f"{_MARK}</invoke>"
    erase = ("[e~[",)
    guide = Guide(
        f'{begin}NAME">',
        f"{end}\n",
        block=(f"{openers[0]}\n", closers[0]),
        trigger=openers[0],
        arguments=tagged(f"{_MARK}<NAME>", f"{_MARK}</NAME>", without=(_MARK,)),
    )
    template_marks = (_MARK,)

    def call(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        name, end = yield from header(cur, _QUOTED_NAME_END)
        if not good_name(name) or tools.lacks(name):
            raise NotACall
        cur.advance(len(end))
        yield from cur.space()
        mark = cur.mark()
        yield from cur.expect(_MARK)
        cur.rollback(mark)
        out.start_call(name)
        parts: list[str] = []
        stop = yield from cur.until(
            markers_of(frozenset((self.end, self.begin, *self.closers))), parts.append
        )
        arguments, stray = _arguments("".join(parts), tools, name)
        if not stop and cur.cut:
            out.arguments(arguments[:-1])
            raise EndOfText
        out.arguments(arguments)
        out.end_call()
        out.content(stray)


class _Element(NamedTuple):
    name: str
    text: list[str]
    children: list[_Element]


def _arguments(text: str, tools: Tools, tool: str) -> tuple[str, str]:
    """Return the elements of a call as JSON, and the text that has no place in it."""
    stray: list[str] = []

    def value(element: _Element, schema: object) -> str:
        text, types = "".join(element.text), tools.types_of(tool, schema)
        if not element.children:
            kind = next((kind for kind in _EMPTY if kind in types and "string" not in types), "")
            return _EMPTY[kind] if kind and not text.strip() else to_json(text, types)
        if {child.name for child in element.children} == {"item"} and ("array" in types or not types):
            items = tools.within(tool, schema, None)
            return f"[{', '.join(value(child, items) for child in element.children)}]"
        stray.append(text.strip())
        return members(element, schema)

    def members(element: _Element, schema: object) -> str:
        by_name: dict[str, list[str]] = {}
        for child in element.children:
            by_name.setdefault(child.name, []).append(value(child, tools.within(tool, schema, child.name)))
        values = (some[0] if len(some) == 1 else f"[{', '.join(some)}]" for some in by_name.values())
        return "{" + ", ".join(f"{quote(key)}: {one}" for key, one in zip(by_name, values, strict=True)) + "}"

    call = _tree(text)
    return members(call, tools.schema(tool)), " ".join(filter(None, ["".join(call.text).strip(), *stray]))


def _tree(text: str) -> _Element:
    first, *tags = text.split(_MARK)
    path = [_Element("", [first], [])]
    for part in tags:
        tag, end, rest = part.partition(">")
        name = tag.lstrip("</")
        if end and name and tag == f"<{name}" and len(path) < _MAX_DEPTH:
            path[-1].children.append(element := _Element(name, [], []))
            path.append(element)
        elif end and tag == f"</{name}" and any(element.name == name for element in path[1:]):
            while path.pop().name != name:  # ends that the model left out
                pass
        else:
            rest = _MARK + part
        path[-1].text.append(rest)
    return path[0]
