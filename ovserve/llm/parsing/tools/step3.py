"""step3: `<steptml:invoke name="f">` inside two layers of special tokens. StepFun Step 3.

Step 3.5 writes qwen3coder.

Source: read 2026-11-22, https://github.com/vllm-project/vllm/blob/0a426f59b232/vllm/entrypoints/openai/tool_parsers/step3_tool_parser.py
"""

# ruff: noqa: RUF001 - these bars are the model's own characters
from __future__ import annotations

from ovserve.llm.parsing.core.cursor import Cursor, Steps
from ovserve.llm.parsing.core.guide import Guide, tagged
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools
from ovserve.llm.parsing.syntax.xmlcall import Form, calls
from ovserve.llm.parsing.tools.tags import TaggedXml

_SECTION, _SECTION_END = "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"
_BEGIN, _SEPARATOR, _END = "<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>"


class Step3(TaggedXml):
    name = "step3"
    markers = (_SECTION, _BEGIN, '<steptml:invoke name="')
    form = Form(
        call='<steptml:invoke name="',
        call_end="</steptml:invoke>",
        parameter='<steptml:parameter name="',
        parameter_end="</steptml:parameter>",
        closers=(_END, _SECTION_END),
    )
    guide = Guide(
        f'{_BEGIN}function{_SEPARATOR}<steptml:invoke name="NAME">',
        f"</steptml:invoke>{_END}",
        block=(_SECTION, _SECTION_END),
        trigger=_SECTION,
        arguments=tagged('<steptml:parameter name="NAME">', "</steptml:parameter>", without=form.ambiguous),
    )

    def matches(self, template: str) -> bool:
        return "<steptml:" in template or _SECTION in template

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        yield from cur.literal(_SECTION)
        while True:
            if (yield from cur.close(_BEGIN)):
                yield from cur.close("function")
                yield from cur.close(_SEPARATOR)
            yield from calls(cur, out, tools, self.form)
            yield from cur.close(_END)
            out.commit()
            mark = cur.mark()
            again = yield from cur.close(_BEGIN)
            cur.rollback(mark)
            if not again:
                break
        yield from cur.close(_SECTION_END)
