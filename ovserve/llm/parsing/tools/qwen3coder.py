"""qwen3coder: `<function=f><parameter=k>v</parameter></function>`. Qwen3-Coder, Qwen3.5, Nemotron 3.

The opening `<tool_call>` is left out by models now and then.

Source: read 2026-11-22, https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/qwen3coder/qwen3coder_tool_parser.cpp
"""

from __future__ import annotations

from ovserve.llm.parsing.core.guide import Guide, tagged
from ovserve.llm.parsing.syntax.xmlcall import Form
from ovserve.llm.parsing.tools.tags import TaggedXml


class Qwen3Coder(TaggedXml):
    name = "qwen3coder"
    markers = ("<tool_call>", "<function=")
    erase = ("<|im_end|>",)
    form = Form(
        call="<function=",
        call_end="</function>",
        parameter="<parameter=",
        parameter_end="</parameter>",
        closers=("</tool_call>",),
        quoted=False,
    )
    guide = Guide(
        "<tool_call>\n<function=NAME>\n",
        "</function>\n</tool_call>",
        separator="\n",
        trigger="<tool_call>",
        arguments=tagged("<parameter=NAME>\n", "\n</parameter>\n", without=form.ambiguous),
    )

    def matches(self, template: str) -> bool:
        return all(tag in template for tag in ("<function=", "<parameter=", "</parameter>"))
