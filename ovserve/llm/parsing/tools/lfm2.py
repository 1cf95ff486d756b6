"""lfm2: `<|tool_call_start|>[f(a=1), g()]<|tool_call_end|>`. Liquid LFM2 and LFM2.5.

Some fine-tunes leave the brackets out or write JSON between the tokens.

Source: read 2026-11-22, https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/lfm2/lfm2_tool_parser.cpp
"""

from __future__ import annotations

from ovserve.llm.parsing.core.cursor import Cursor, Steps
from ovserve.llm.parsing.core.dialect import ToolDialect
from ovserve.llm.parsing.core.guide import Guide, listed
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools
from ovserve.llm.parsing.json.call import MARKED, block
from ovserve.llm.parsing.syntax.pythonic import bracketed, sequence

_OPEN, _CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"


class Lfm2(ToolDialect):
    name = "lfm2"
    markers = (_OPEN,)
    erase = ("<|im_end|>",)
    guide = Guide(
        "NAME(",
        ")",
        separator=", ",
        block=("<|tool_call_start|>[", "]<|tool_call_end|>"),
        trigger="<|tool_call_start|>",
        arguments=listed("NAME=", ", "),
    )

    def matches(self, template: str) -> bool:
        return any(text in template for text in ("<|assistant_tool_call|>", _OPEN, "keep_past_thinking"))

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        yield from cur.expect(_OPEN)
        if (yield from cur.close(_CLOSE)):
            return
        yield from cur.space()
        char = yield from cur.peek()
        mark = cur.mark()
        yield from cur.literal("[")
        yield from cur.space()
        is_json = (yield from cur.peek()) == "{"
        cur.rollback(mark)
        if is_json:
            yield from block(cur, out, MARKED, closers=(_CLOSE,))
        elif char == "[":
            yield from bracketed(cur, out)
            yield from cur.close(_CLOSE)
        else:
            yield from sequence(cur, out, _CLOSE)
