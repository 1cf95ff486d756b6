"""minimax_m2: `<invoke name="f"><parameter name="k">v</parameter></invoke>`. MiniMax M2.

Source: read 2026-11-22, https://github.com/sgl-project/sglang/blob/087f50049752/python/sglang/srt/function_call/minimax_m2.py
"""

from __future__ import annotations

from ovserve.llm.parsing.core.guide import Guide, tagged
from ovserve.llm.parsing.syntax.xmlcall import Form
from ovserve.llm.parsing.tools.tags import TaggedXml


class MiniMaxM2(TaggedXml):
    name = "minimax_m2"
    markers = ("<minimax:tool_call>",)
    erase = ("[e~[",)
    form = Form(
        call='<invoke name="',
        call_end="</invoke>",
        parameter='<parameter name="',
        parameter_end="</parameter>",
        closers=("</minimax:tool_call>",),
    )
    guide = Guide(
        '<invoke name="NAME">\n',
        "</invoke>\n",
        block=("<minimax:tool_call>\n", "</minimax:tool_call>"),
        trigger="<minimax:tool_call>",
        arguments=tagged('<parameter name="NAME">', "</parameter>\n", without=form.ambiguous),
    )

    def matches(self, template: str) -> bool:
        return "<minimax:tool_call>" in template
