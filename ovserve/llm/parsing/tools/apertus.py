"""apertus: `<|tools_prefix|>[{"f": {...}}]<|tools_suffix|>`: the name is the key. Swiss AI Apertus.

Source: read 2026-11-22, https://github.com/vllm-project/vllm/blob/0de63034526f/vllm/entrypoints/openai/tool_parsers/apertus_tool_parser.py
"""

from __future__ import annotations

from ovserve.llm.parsing.core.cursor import Cursor, EndOfText, NotACall, Steps
from ovserve.llm.parsing.core.dialect import ToolDialect
from ovserve.llm.parsing.core.guide import Guide
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools
from ovserve.llm.parsing.json.call import MARKED, Keys, call_list
from ovserve.llm.parsing.json.loose import string, value

_OPEN, _CLOSE = "<|tools_prefix|>", "<|tools_suffix|>"


class Apertus(ToolDialect):
    name = "apertus"
    markers = (_OPEN,)
    erase = ("<|assistant_end|>",)
    guide = Guide(
        '{"NAME": ',
        "}",
        separator=", ",
        block=("<|tools_prefix|>[", "]<|tools_suffix|>"),
        trigger="<|tools_prefix|>",
    )

    def matches(self, template: str) -> bool:
        return _OPEN in template

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        yield from cur.expect(_OPEN)
        yield from cur.space()
        yield from call_list(cur, out, MARKED, _item)
        yield from cur.close(_CLOSE)


def _item(cur: Cursor, out: Output, keys: Keys) -> Steps[None]:
    yield from cur.expect("{")
    while True:
        yield from cur.space()
        name = (yield from string(cur)).strip()
        yield from cur.space()
        yield from cur.expect(":")
        yield from cur.space()
        if not name or (yield from cur.peek()) not in ("{", ""):
            raise NotACall
        out.start_call(name)
        try:
            yield from value(cur, out.arguments, outer=1)
        except EndOfText:
            if cur.cut:
                raise
        out.end_call()
        yield from cur.space()
        if (yield from cur.literal("}")):
            return
        yield from cur.expect(",")
