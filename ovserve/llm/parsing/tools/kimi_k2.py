"""kimi_k2: `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`.

The whole of `functions.name:0` is the call's id; the template wants it back.

Source: read 2026-11-22, https://github.com/sgl-project/sglang/blob/0351c1fafe4c/python/sglang/srt/function_call/kimik2_detector.py
"""

from __future__ import annotations

import re

from ovserve.llm.parsing.core.cursor import Cursor, Markers, Steps
from ovserve.llm.parsing.core.dialect import ToolDialect
from ovserve.llm.parsing.core.framed import call, header
from ovserve.llm.parsing.core.guide import Guide
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools

_SECTION = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>")
_SECTION_END = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>")
_BEGIN, _ARGUMENTS, _END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_ID = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")
_AFTER_ID = Markers((_ARGUMENTS, _BEGIN, _END))
_CLOSERS = Markers((_END, _BEGIN, *_SECTION_END))


class KimiK2(ToolDialect):
    name = "kimi_k2"
    markers = (*_SECTION, _BEGIN)
    erase = ("<|im_end|>",)
    guide = Guide(
        "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        block=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        trigger="<|tool_calls_section_begin|>",
    )

    def matches(self, template: str) -> bool:
        return "<|tool_calls_section_begin|>" in template

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        yield from cur.either(_SECTION)
        yield from cur.space()
        if (yield from cur.close(*_SECTION_END)):
            return
        yield from cur.expect(_BEGIN)
        while True:
            id, _ = yield from header(cur, _AFTER_ID)
            yield from cur.expect(_ARGUMENTS)
            match = _ID.fullmatch(id.strip())
            name = match[1] if match else ""
            yield from call(cur, out, name, _CLOSERS, id=id.strip() if ":" in id else None)
            yield from cur.close(_END)
            out.commit()
            if not (yield from cur.close(_BEGIN)):
                break
        yield from cur.close(*_SECTION_END)
