"""Dialects that write calls as JSON without two tags around each."""

from __future__ import annotations

from ovserve.llm.parsing.core.cursor import Cursor, EndOfText, NotACall, Steps
from ovserve.llm.parsing.core.dialect import ToolDialect, attempt
from ovserve.llm.parsing.core.guide import Guide
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools
from ovserve.llm.parsing.json.call import MARKED, Keys, block, call_list, call_object, unmarked
from ovserve.llm.parsing.json.loose import string, value

_TAG = "<|python_tag|>"
_TAGGED = Keys(needs_arguments=True)


class Llama3(ToolDialect):
    """JSON objects, after `<|python_tag|>` or as the whole answer. Llama 3.1, 3.2, 3.3.

    Models drop the tag often, so an answer that starts with `{` may be a call; it is one only with parameters
    and the name of a tool of the request. Calls are parted by `;` (or just follow each other).

    Source: read 2026-11-22,
    https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/llama3/tool_parser.cpp
    """

    name = "llama3"
    markers = (_TAG,)
    bare = "{"
    erase = ("<|eom_id|>", "<|eot_id|>", "<|begin_of_text|>", "<|end_of_text|>")
    guide = Guide('{"name": "NAME", "parameters": ', "}", separator="; ", trigger='{"name":')

    def matches(self, template: str) -> bool:
        return _TAG in template or ("<|start_header_id|>" in template and '"parameters":' in template)

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        tagged = yield from cur.literal(_TAG)
        yield from cur.space()
        if tagged and (yield from cur.peek()) == "[":
            yield from call_list(cur, out, _TAGGED)
            return
        keys = _TAGGED if tagged else unmarked(tools)
        yield from call_object(cur, out, keys)
        while (yield from self._another(cur, out, keys)):
            pass

    def _another(self, cur: Cursor, out: Output, keys: Keys) -> Steps[bool]:
        mark = cur.mark()
        yield from cur.space()
        parted = yield from cur.either((";", ","))
        yield from cur.space()
        yield from cur.literal(_TAG)
        yield from cur.space()
        char = yield from cur.peek()
        if char == "{" and (yield from attempt(cur, out, call_object(cur, out, keys))):
            cur.release(mark)
            return True
        if parted and not char:
            cur.release(mark)  # a separator with nothing behind it
        else:
            cur.rollback(mark)
        return False


_TAGS = {"<tool_call>": ("</tool_call>",), "[TOOL_CALLS]": ()}
_FENCES = ("```json", "```")
_THOUGHT = "</think>"  # text, unless a reasoning dialect takes it; what follows may be a bare list


class Xlam(ToolDialect):
    """A JSON list, bare, in a code fence, after the reasoning or in tags. Salesforce xLAM 2.

    No template shows it, so it is never detected. Outside of tags a call must name a tool of the request.

    Source: read 2026-11-22,
    https://github.com/vllm-project/vllm/blob/01d3ce8c0e53/vllm/entrypoints/openai/tool_parsers/xlam_tool_parser.py
    """

    name = "xlam"
    markers = (*_TAGS, *_FENCES, _THOUGHT)
    plain = (*_FENCES, _THOUGHT)
    bare = "[{"
    erase = ("<|im_end|>", "<|eot_id|>")
    guide = Guide(
        '{"name": "NAME", "arguments": ',
        "}",
        separator=", ",
        block=("[", "]"),
        inside=('{"name": "NAME", "arguments": ',),
    )

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        tag = yield from cur.either(_TAGS)
        if tag:
            yield from block(cur, out, MARKED, closers=_TAGS[tag])
            return
        thought = yield from cur.literal(_THOUGHT)
        fence = yield from cur.either(_FENCES)
        yield from block(cur, out, unmarked(tools))
        if thought:
            out.content(_THOUGHT)
        if fence:
            yield from cur.close("```")


_OPEN, _CLOSE = "<|tools_prefix|>", "<|tools_suffix|>"


class Apertus(ToolDialect):
    """`<|tools_prefix|>[{"f": {...}}]<|tools_suffix|>`: the name is the key. Swiss AI Apertus.

    Source: read 2026-11-22,
    https://github.com/vllm-project/vllm/blob/0de63034526f/vllm/entrypoints/openai/tool_parsers/apertus_tool_parser.py
    """

    name = "apertus"
    markers = (_OPEN,)
    erase = ("<|assistant_end|>",)
    guide = Guide(
        '{"NAME": ',
        "}",
        separator=", ",
        block=("<|tools_prefix|>[", "]<|tools_suffix|>"),
        trigger="<|tools_prefix|>",
    )

    def matches(self, template: str) -> bool:
        return _OPEN in template

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        yield from cur.expect(_OPEN)
        yield from cur.space()
        yield from call_list(cur, out, MARKED, _item)
        yield from cur.close(_CLOSE)


def _item(cur: Cursor, out: Output, keys: Keys) -> Steps[None]:
    yield from cur.expect("{")
    while True:
        yield from cur.space()
        name = (yield from string(cur)).strip()
        yield from cur.space()
        yield from cur.expect(":")
        yield from cur.space()
        if not name or (yield from cur.peek()) not in ("{", ""):
            raise NotACall
        out.start_call(name)
        try:
            yield from value(cur, out.arguments, outer=1)
        except EndOfText:
            if cur.cut:
                raise
        out.end_call()
        yield from cur.space()
        if (yield from cur.literal("}")):
            return
        yield from cur.expect(",")
