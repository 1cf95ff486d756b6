"""pythonic: the answer is `[f(a=1), g()]`. Llama 3.2 1B/3B, ToolACE; Llama 4 in `<|python_start|>`.

Without that token a call must name a tool of the request.

Source: read 2026-11-22, https://github.com/sgl-project/sglang/blob/0813438c0321/python/sglang/srt/function_call/pythonic_detector.py
"""

from __future__ import annotations

from ovserve.llm.parsing.core.cursor import Cursor, Steps
from ovserve.llm.parsing.core.dialect import ToolDialect
from ovserve.llm.parsing.core.guide import Guide, listed
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools
from ovserve.llm.parsing.syntax.pythonic import bracketed

_OPEN, _CLOSE = "<|python_start|>", "<|python_end|>"


class Pythonic(ToolDialect):
    name = "pythonic"
    markers = (_OPEN,)
    bare = "["
    erase = ("<|eom|>", "<|eot|>", "<|eom_id|>", "<|eot_id|>")
    guide = Guide(
        "NAME(",
        ")",
        separator=", ",
        block=("[", "]"),
        inside=("[NAME(", ", NAME("),
        arguments=listed("NAME=", ", "),
    )

    def matches(self, template: str) -> bool:
        return _OPEN in template

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        tagged = yield from cur.literal(_OPEN)
        yield from cur.space()
        yield from bracketed(cur, out, None if tagged else tools)
        if tagged:
            yield from cur.close(_CLOSE)
