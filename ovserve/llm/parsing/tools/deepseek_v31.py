"""deepseek_v31: `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜>`. DeepSeek V3.1 and later.

Source: read 2026-11-22, https://github.com/sgl-project/sglang/blob/09631df1ceb7/python/sglang/srt/function_call/deepseekv31_detector.py
"""

# ruff: noqa: RUF001, RUF002 - these bars are the model's own characters
from __future__ import annotations

from ovserve.llm.parsing.core.cursor import Cursor, Markers, Steps
from ovserve.llm.parsing.core.dialect import ToolDialect
from ovserve.llm.parsing.core.framed import call, header
from ovserve.llm.parsing.core.guide import Guide
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools

SECTION, SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, SEPARATOR, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
CLOSERS = Markers((END, BEGIN, SECTION_END))
_NAME_END = Markers((SEPARATOR, BEGIN, END))


class DeepseekV31(ToolDialect):
    name = "deepseek_v31"
    markers = (SECTION, BEGIN)
    erase = ("<｜end▁of▁sentence｜>",)
    guide = Guide(f"{BEGIN}NAME{SEPARATOR}", END, block=(SECTION, SECTION_END), trigger=SECTION)

    def matches(self, template: str) -> bool:
        return SECTION in template or BEGIN in template

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        yield from cur.literal(SECTION)
        yield from cur.space()
        if (yield from cur.close(SECTION_END)):
            return
        yield from cur.expect(BEGIN)
        while True:
            yield from self.call(cur, out)
            yield from cur.close(END)
            out.commit()
            if not (yield from cur.close(BEGIN)):
                break
        yield from cur.close(SECTION_END)

    def call(self, cur: Cursor, out: Output) -> Steps[None]:
        name, _ = yield from header(cur, _NAME_END)
        yield from cur.expect(SEPARATOR)
        yield from call(cur, out, name.strip(), CLOSERS)
