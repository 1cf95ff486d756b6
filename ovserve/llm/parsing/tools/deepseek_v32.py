"""deepseek_v32: `<｜DSML｜invoke name="f">` with an attribute on each parameter that marks strings.

DeepSeek V3.2; V4 calls the block `tool_calls`.

Source: read 2026-11-22, https://github.com/vllm-project/vllm/blob/17c620f127b8/vllm/entrypoints/openai/tool_parsers/deepseek_v32_tool_parser.py
"""

# ruff: noqa: RUF001, RUF002 - these bars are the model's own characters
from __future__ import annotations

from ovserve.llm.parsing.core.guide import Guide, tagged
from ovserve.llm.parsing.syntax.xmlcall import Form
from ovserve.llm.parsing.tools.tags import TaggedXml


class DeepseekV32(TaggedXml):
    name = "deepseek_v32"
    markers = ("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>")
    erase = ("<｜end▁of▁sentence｜>",)
    form = Form(
        call='<｜DSML｜invoke name="',
        call_end="</｜DSML｜invoke>",
        parameter='<｜DSML｜parameter name="',
        parameter_end="</｜DSML｜parameter>",
        closers=("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"),
        trim=False,
    )
    guide = Guide(
        '<｜DSML｜invoke name="NAME">\n',
        "</｜DSML｜invoke>\n",
        block=("<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>"),
        trigger="<｜DSML｜function_calls>",
        arguments=tagged(
            '<｜DSML｜parameter name="NAME" string="false">',
            "</｜DSML｜parameter>\n",
            text='<｜DSML｜parameter name="NAME" string="true">',
            without=form.ambiguous,
        ),
    )

    def matches(self, template: str) -> bool:
        return "｜DSML｜" in template
