"""hermes3: `<tool_call>` around one JSON object. Hermes 2/3, Qwen2.5, Qwen3, QwQ, Granite 4.

JSON without the tags is an answer, also where it looks like a call: qwen25coder is the dialect of the models
that leave the tags out.

Source: read 2026-11-22, https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/hermes3/tool_parser.cpp
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ovserve.llm.parsing.core.cursor import Cursor, NotACall, Steps, markers_of
from ovserve.llm.parsing.core.guide import Guide
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools
from ovserve.llm.parsing.json.call import MARKED, Keys, block
from ovserve.llm.parsing.tools.tagged_json import TaggedJson


class Hermes3(TaggedJson):
    name = "hermes3"
    tags = {"<tool_call>": ("</tool_call>",)}
    erase = ("<|im_end|>",)
    guide = Guide(
        '<tool_call>\n{"name": "NAME", "arguments": ',
        "}\n</tool_call>",
        separator="\n",
        trigger="<tool_call>",
    )

    def matches(self, template: str) -> bool:
        return "<tool_call>" in template and "</tool_call>" in template

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        if not (yield from cur.either(self.markers)):
            raise NotACall
        yield from braced(cur, out, MARKED, self.tags["<tool_call>"])


def braced(cur: Cursor, out: Output, keys: Keys, closers: Sequence[str]) -> Steps[None]:
    """A block, perhaps with one more pair of braces around the call."""
    yield from cur.space()
    mark = cur.mark()
    doubled = yield from cur.literal("{{")
    cur.rollback(mark)
    if doubled:
        cur.advance(1)
        ends = markers_of(frozenset(closers))
        yield from block(cur, out, msgspec.structs.replace(keys, closers=ends, outer=2))
        yield from cur.close("}")
        yield from cur.close(*closers)
    else:
        yield from block(cur, out, keys, closers=tuple(closers))
