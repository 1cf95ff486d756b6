"""olmo3: calls as Python, one a line, in `<function_calls>`. AI2 Olmo 3.

Source: read 2026-11-22, https://github.com/vllm-project/vllm/blob/2ca253f2ef2f/vllm/entrypoints/openai/tool_parsers/olmo3_tool_parser.py
"""

from __future__ import annotations

from ovserve.llm.parsing.core.cursor import Cursor, Steps
from ovserve.llm.parsing.core.dialect import ToolDialect
from ovserve.llm.parsing.core.guide import Guide, listed
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools
from ovserve.llm.parsing.syntax.pythonic import bracketed, sequence

_OPEN, _CLOSE = "<function_calls>", "</function_calls>"


class Olmo3(ToolDialect):
    name = "olmo3"
    markers = (_OPEN,)
    erase = ("<|im_end|>", "<|endoftext|>")
    guide = Guide(
        "NAME(",
        ")",
        separator="\n",
        block=("<function_calls>\n", "\n</function_calls>"),
        trigger="<function_calls>",
        arguments=listed("NAME=", ", "),
    )

    def matches(self, template: str) -> bool:
        return _OPEN in template

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        yield from cur.expect(_OPEN)
        if (yield from cur.close(_CLOSE)):
            return
        yield from cur.space()
        if (yield from cur.peek()) == "[":
            yield from bracketed(cur, out)
            yield from cur.close(_CLOSE)
        else:
            yield from sequence(cur, out, _CLOSE)
