"""hermes3: `<tool_call>` around one JSON object. Hermes 2/3, Qwen2.5, Qwen3, QwQ, Granite 4.

Source: NousResearch's function-calling format; parsers.md section 3.1. Two habits of Qwen2.5-Coder are calls
as well, met when the model was run: it leaves out the tags that its template asks for, so that the answer is
the bare object or one in a code fence; and it copies the template's doubled braces. Without tags the call
must begin the answer and name a tool of the request; any other JSON stays an answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from ovserve.llm.parsing.cursor import Cursor, Steps
from ovserve.llm.parsing.dialect import attempt
from ovserve.llm.parsing.guide import Guide
from ovserve.llm.parsing.jsoncall import MARKED, Keys, block
from ovserve.llm.parsing.output import Output
from ovserve.llm.parsing.tools.tagged import TaggedJson
from ovserve.llm.parsing.typed import Tools

_FENCES = ("```json", "```")


class Hermes3(TaggedJson):
    name = "hermes3"
    tags = {"<tool_call>": ("</tool_call>",)}
    bare = "{[`"
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
        if (yield from cur.either(self.markers)):
            yield from _braced(cur, out, MARKED, self.tags["<tool_call>"])
            return
        known = Keys(marked=False, good_name=tools.__contains__)
        yield from _untagged(cur, out, known)
        while (yield from attempt(cur, out, _next(cur, out, known))):
            pass


def _untagged(cur: Cursor, out: Output, keys: Keys) -> Steps[None]:
    fence = yield from cur.either(_FENCES)
    yield from _braced(cur, out, keys, ("```",) if fence else ())


def _next(cur: Cursor, out: Output, keys: Keys) -> Steps[None]:
    yield from cur.space()
    yield from _untagged(cur, out, keys)


def _braced(cur: Cursor, out: Output, keys: Keys, closers: Sequence[str]) -> Steps[None]:
    """A block, perhaps with one more pair of braces around the call."""
    yield from cur.space()
    mark = cur.mark()
    doubled = yield from cur.literal("{{")
    cur.rollback(mark)
    if doubled:
        cur.advance(1)
        yield from block(cur, out, keys)
        yield from cur.close("}")
        yield from cur.close(*closers)
    else:
        yield from block(cur, out, keys, closers=tuple(closers))
