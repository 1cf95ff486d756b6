"""glm45: `<tool_call>f` and pairs of `<arg_key>` and `<arg_value>`. GLM 4.5, 4.6, 4.7.

GLM 4.7 writes no newlines. Values are typed by the tool's schema. `<arg_value>` is left out by models now and
then.

Source: read 2026-11-22, https://github.com/vllm-project/vllm/blob/0241e7d69100/vllm/entrypoints/openai/tool_parsers/glm4_moe_tool_parser.py
"""

from __future__ import annotations

from ovserve.llm.parsing.core.cursor import Cursor, Markers, Steps
from ovserve.llm.parsing.core.dialect import ToolDialect
from ovserve.llm.parsing.core.framed import header
from ovserve.llm.parsing.core.guide import Guide, tagged
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools
from ovserve.llm.parsing.syntax.xmlcall import Form, body

_FORM = Form(
    call="<tool_call>",
    call_end="</tool_call>",
    parameter="<arg_key>",
    parameter_end="</arg_value>",
    quoted=False,
    trim=False,
    tag_end="</arg_key>",
    value="<arg_value>",
)
_NAME_END = Markers(("\n", _FORM.parameter, _FORM.call_end))


class Glm45(ToolDialect):
    name = "glm45"
    markers = (_FORM.call,)
    erase = ("<|user|>", "<|observation|>", "<|endoftext|>")
    guide = Guide(
        "<tool_call>NAME\n",
        "</tool_call>",
        separator="\n",
        trigger="<tool_call>",
        arguments=tagged("<arg_key>NAME</arg_key>\n<arg_value>", "</arg_value>\n", without=_FORM.ambiguous),
    )

    def matches(self, template: str) -> bool:
        return _FORM.parameter in template

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        yield from cur.expect(_FORM.call)
        yield from cur.space()
        name = (yield from header(cur, _NAME_END))[0].strip()
        yield from body(cur, out, tools, _FORM, name)
