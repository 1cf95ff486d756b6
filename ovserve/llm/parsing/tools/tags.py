"""The base class of dialects that write a call with tags for name and parameters.

Subclassed by qwen3coder, seed_oss, minicpm5, minimax_m2, step3 and deepseek_v32.
"""

from __future__ import annotations

from typing import ClassVar

from ovserve.llm.parsing.core.cursor import Cursor, Steps
from ovserve.llm.parsing.core.dialect import ToolDialect
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools
from ovserve.llm.parsing.syntax.xmlcall import Form, calls


class TaggedXml(ToolDialect):
    form: ClassVar[Form]

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        # The marker is the block's opening tag, or the call itself where models leave the block out.
        blocks = [marker for marker in self.markers if marker != self.form.call]
        if blocks and (yield from cur.either(blocks)) and (yield from cur.close(*self.form.closers)):
            return
        yield from calls(cur, out, tools, self.form)
