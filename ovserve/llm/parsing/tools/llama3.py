"""llama3: JSON objects, after `<|python_tag|>` or as the whole answer. Llama 3.1, 3.2, 3.3.

Models drop the tag often, so an answer that starts with `{` may be a call; it is one only with parameters and
the name of a tool of the request. Calls are parted by `;` (or just follow each other).

Source: read 2026-11-22, https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/llama3/tool_parser.cpp
"""

from __future__ import annotations

from ovserve.llm.parsing.core.cursor import Cursor, Steps
from ovserve.llm.parsing.core.dialect import ToolDialect, attempt
from ovserve.llm.parsing.core.guide import Guide
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools
from ovserve.llm.parsing.json.call import Keys, call_list, call_object, unmarked

_TAG = "<|python_tag|>"
_TAGGED = Keys(needs_arguments=True)


class Llama3(ToolDialect):
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
