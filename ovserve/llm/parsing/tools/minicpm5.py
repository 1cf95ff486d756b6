"""minicpm5: `<function name="f"><param name="k">v</param></function>`. MiniCPM5.

Source: read 2026-11-22, https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/minicpm5/minicpm5_tool_parser.cpp
"""

from __future__ import annotations

from ovserve.llm.parsing.core.guide import Guide, tagged
from ovserve.llm.parsing.syntax.xmlcall import Form
from ovserve.llm.parsing.tools.tags import TaggedXml


class MiniCpm5(TaggedXml):
    name = "minicpm5"
    markers = ('<function name="',)
    erase = ("<s>", "</s>", "<|im_end|>")
    form = Form(
        call='<function name="',
        call_end="</function>",
        parameter='<param name="',
        parameter_end="</param>",
        cdata=True,
    )
    guide = Guide(
        '<function name="NAME">',
        "</function>",
        trigger='<function name="',
        arguments=tagged('<param name="NAME">', "</param>", without=form.ambiguous),
    )

    def matches(self, template: str) -> bool:
        return '<param name="' in template
