"""deepseek_v3: as V3.1, with a type before the name and the arguments in a ```json fence. DeepSeek V3, R1.

Source: read 2026-11-22, https://github.com/sgl-project/sglang/blob/01967342ac0b/python/sglang/srt/function_call/deepseekv3_detector.py
"""

from __future__ import annotations

from ovserve.llm.parsing.core.cursor import Cursor, Markers, Steps
from ovserve.llm.parsing.core.framed import call, header
from ovserve.llm.parsing.core.guide import Guide
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.tools.deepseek_v31 import (
    BEGIN,
    END,
    SECTION,
    SECTION_END,
    SEPARATOR,
    DeepseekV31,
)

_TYPE_END = Markers((SEPARATOR, BEGIN, END))
_NAME_END = Markers(("\n", "```", "{", BEGIN, END))
_FENCE = "```"
_CLOSERS = Markers((_FENCE, END, BEGIN, SECTION_END))


class DeepseekV3(DeepseekV31):
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

    def call(self, cur: Cursor, out: Output) -> Steps[None]:
        yield from header(cur, _TYPE_END)
        yield from cur.expect(SEPARATOR)
        name, _ = yield from header(cur, _NAME_END)
        yield from cur.close("```json", "```")
        yield from call(cur, out, name.strip(), _CLOSERS)
        yield from cur.close(_FENCE)
