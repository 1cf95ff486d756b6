"""qwen3coder: `<function=f><parameter=k>v</parameter></function>`. Qwen3-Coder, Qwen3.5, Nemotron 3.

Source: parsers.md section 3.7. The opening `<tool_call>` is left out by models now and then.
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
        arguments=tagged("<parameter=NAME>\n", "\n</parameter>\n"),
    )

    def matches(self, template: str) -> bool:
        return all(tag in template for tag in ("<function=", "<parameter=", "</parameter>"))
