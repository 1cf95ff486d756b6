"""glm45: `<tool_call>f` and pairs of `<arg_key>` and `<arg_value>`. GLM 4.5, 4.6, 4.7.

GLM 4.7 writes no newlines. Values are typed by the tool's schema.

Source: read 2026-11-22, https://github.com/vllm-project/vllm/blob/0241e7d69100/vllm/entrypoints/openai/tool_parsers/glm4_moe_tool_parser.py
"""

from __future__ import annotations

from ovserve.llm.parsing.core.cursor import Cursor, EndOfText, Markers, NotACall, Steps
from ovserve.llm.parsing.core.dialect import ToolDialect
from ovserve.llm.parsing.core.framed import good_name, header
from ovserve.llm.parsing.core.guide import Guide, tagged
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools, to_json
from ovserve.llm.parsing.json.scan import quote

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEY, _KEY_END, _VALUE, _VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
_NAME_END = Markers(("\n", _KEY, _CLOSE))
_KEY_CLOSE = Markers((_KEY_END,))
_VALUE_CLOSE = Markers((_VALUE_END,))


class Glm45(ToolDialect):
    name = "glm45"
    markers = (_OPEN,)
    erase = ("<|user|>", "<|observation|>", "<|endoftext|>")
    guide = Guide(
        "<tool_call>NAME\n",
        "</tool_call>",
        separator="\n",
        trigger="<tool_call>",
        arguments=tagged("<arg_key>NAME</arg_key>\n<arg_value>", "</arg_value>\n"),
    )

    def matches(self, template: str) -> bool:
        return _KEY in template

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        yield from cur.expect(_OPEN)
        yield from cur.space()
        name = (yield from header(cur, _NAME_END))[0].strip()
        if not good_name(name):
            raise NotACall
        out.start_call(name)
        arguments: dict[str, str] = {}
        key = ""
        value: list[str] = []
        try:
            while (yield from _tag(cur)) == _KEY:
                key = (yield from header(cur, _KEY_CLOSE))[0].strip()
                cur.advance(len(_KEY_END))
                yield from cur.space()
                yield from cur.expect(_VALUE)
                if not (yield from cur.until(_VALUE_CLOSE, value.append)):
                    raise EndOfText
                cur.advance(len(_VALUE_END))
                arguments[key] = to_json("".join(value), tools.types(name, key))
                value.clear()
                key = ""
        except EndOfText:
            if cur.cut:  # what there is, and visibly not the whole
                rest = [f"{quote(key)}: {quote(''.join(value))[:-1]}"] if key else []
                out.arguments("{" + ", ".join([*_items(arguments), *rest]))
            raise
        out.arguments("{" + ", ".join(_items(arguments)) + "}")
        out.end_call()


def _tag(cur: Cursor) -> Steps[str]:
    yield from cur.space()
    tag = yield from cur.either((_KEY, _CLOSE))
    if not tag:
        rest = cur.buf[cur.pos :]
        cut = cur.ended and (_KEY.startswith(rest) or _CLOSE.startswith(rest))
        raise EndOfText if cut else NotACall
    return tag


def _items(arguments: dict[str, str]) -> list[str]:
    return [f"{quote(key)}: {value}" for key, value in arguments.items()]
