"""qwen25coder: hermes3, whose tags the model leaves out as often as not. Qwen2.5-Coder.

Met when the model was run: its template asks for tags around an object in doubled braces. It answers with
that, with the bare object, or with the object in a code fence. Without tags a call must begin the answer and
name a tool of the request. The doubled braces of the template, or the model's name, choose this dialect.
"""

from __future__ import annotations

import re

from ovserve.llm.parsing.core.cursor import Cursor, Steps
from ovserve.llm.parsing.core.dialect import attempt
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools
from ovserve.llm.parsing.json.call import Keys, unmarked
from ovserve.llm.parsing.tools.hermes3 import Hermes3, braced

_DOUBLED = re.compile(r"""<tool_call>(?:\\n|\s)*\{\{\\?["']name""")
_FENCES = ("```json", "```")


class Qwen25Coder(Hermes3):
    name = "qwen25coder"
    bare = "{[`"
    models = ("qwen2.5-coder", "qwen25-coder", "qwen2_5-coder")

    def matches(self, template: str) -> bool:
        return super().matches(template) and _DOUBLED.search(template) is not None

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        mark = cur.mark()
        tagged = yield from cur.either(self.markers)
        cur.rollback(mark)
        if tagged:
            yield from super().calls(cur, out, tools)
            return
        keys = unmarked(tools)
        yield from _untagged(cur, out, keys)
        while (yield from attempt(cur, out, _next(cur, out, keys))):
            pass


def _untagged(cur: Cursor, out: Output, keys: Keys) -> Steps[None]:
    fence = yield from cur.either(_FENCES)
    yield from braced(cur, out, keys, ("```",) if fence else ())


def _next(cur: Cursor, out: Output, keys: Keys) -> Steps[None]:
    cur.sure = False
    yield from cur.space()
    yield from _untagged(cur, out, keys)
