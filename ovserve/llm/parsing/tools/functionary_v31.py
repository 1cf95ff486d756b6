"""functionary_v31: `<function=f>{...}</function>`. MeetKai Functionary on Llama 3.1, Llama's own variant."""

from __future__ import annotations

from ovserve.llm.parsing.core.cursor import Cursor, Markers, Steps
from ovserve.llm.parsing.core.dialect import ToolDialect
from ovserve.llm.parsing.core.framed import call, header
from ovserve.llm.parsing.core.guide import Guide
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools

_OPEN, _CLOSE = "<function=", "</function>"
_NAME_END = Markers((">",))
_CLOSERS = Markers((_CLOSE,))


class FunctionaryV31(ToolDialect):
    name = "functionary_v31"
    markers = (_OPEN,)
    erase = ("<|eom_id|>", "<|eot_id|>")
    guide = Guide("<function=NAME>", "</function>", trigger="<function=")

    def matches(self, template: str) -> bool:
        return _OPEN in template and _CLOSE in template and "<parameter=" not in template

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        yield from cur.expect(_OPEN)
        name, _ = yield from header(cur, _NAME_END)
        cur.advance(1)
        yield from cur.space()
        if (yield from cur.peek()) not in ("{", "<"):
            raise cur.failure()
        yield from call(cur, out, name.strip(), _CLOSERS)
        yield from cur.close(_CLOSE)
