"""onyx: messages to recipients; a call is a message to a tool, in `<atem:...>` tags.

`to=self` is reasoning, `to=user` the answer. Markup quoted in those is text; prose before the call in a
message to a tool is content. Values are typed like qwen3coder's but keep their newlines.

Source: read 2026-11-22, https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/onyx/onyx_tool_parser.cpp
"""

from __future__ import annotations

from ovserve.llm.parsing.core.cursor import Cursor, EndOfText, Markers, NotACall, Steps
from ovserve.llm.parsing.core.frames import FramedDialect, Route
from ovserve.llm.parsing.core.guide import Guide, tagged
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools
from ovserve.llm.parsing.syntax.xmlcall import Form, calls

_OPEN = "<atem:function_calls>"
_FORM = Form(
    call='<atem:invoke name="',
    call_end="</atem:invoke>",
    parameter='<atem:parameter name="',
    parameter_end="</atem:parameter>",
    closers=("</atem:function_calls>",),
    trim=False,
)


class Onyx(FramedDialect):
    name = "onyx"
    starters = ("<|start|>", "<|message|>")
    enders = ("<|eom|>", "<|eot|>")
    unframed = _OPEN
    guide = Guide(
        ' to=NAME<|message|><atem:function_calls>\n<atem:invoke name="NAME">\n',
        "</atem:invoke>\n</atem:function_calls>",
        single=True,
        inside=('<atem:invoke name="NAME">\n',),
        arguments=tagged('<atem:parameter name="NAME">', "</atem:parameter>\n", without=_FORM.ambiguous),
    )

    def matches(self, template: str) -> bool:
        return all(token in template for token in ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"))

    def route(self, header: str, recipient: str, tools: Tools | None) -> Route:
        if recipient == "self":
            return Route("reasoning")
        return Route("content" if recipient in ("", "user") else "call", recipient)

    def body(self, cur: Cursor, out: Output, tools: Tools, name: str, stops: Markers) -> Steps[None]:
        prose: list[str] = []
        marker = yield from cur.until(Markers((_OPEN, _FORM.call, *stops.strings)), prose.append)
        if not marker:
            raise EndOfText
        if marker in stops.strings:
            raise NotACall
        yield from cur.literal(_OPEN)
        yield from calls(cur, out, tools, _FORM)
        out.content("".join(prose).strip())
