"""The base of every dialect that puts JSON calls between two tags; no dialect itself.

Subclassed by hermes3, granite, phi4, hunyuan, jamba, apriel, nemotron_nano_v2, internlm, command_r7b and
ernie45.
"""

from __future__ import annotations

from typing import ClassVar

from ovserve.llm.parsing.cursor import Cursor, NotACall, Steps
from ovserve.llm.parsing.dialect import ToolDialect
from ovserve.llm.parsing.jsoncall import MARKED, Keys, block
from ovserve.llm.parsing.output import Output
from ovserve.llm.parsing.typed import Tools


class TaggedJson(ToolDialect):
    tags: ClassVar[dict[str, tuple[str, ...]]]  # opening tag to the closing tags it may have
    keys: ClassVar[Keys] = MARKED
    forms: ClassVar[dict[str, str]] = {}  # what may follow an opening tag, if not both object and list

    def __init_subclass__(cls) -> None:
        cls.markers = tuple(getattr(cls, "tags", ()))

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        tag = yield from cur.either(self.markers)
        if not tag:
            raise NotACall
        yield from block(cur, out, self.keys, closers=self.tags[tag], forms=self.forms.get(tag, "{["))
