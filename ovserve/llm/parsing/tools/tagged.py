"""The base classes of every dialect that puts JSON calls between two tags.

Subclassed by hermes3, granite, phi4, hunyuan, jamba, apriel, nemotron_nano_v2, internlm, command_r7b and
ernie45.
"""

from __future__ import annotations

from typing import ClassVar

from ovserve.llm.parsing.core.cursor import Cursor, NotACall, Steps
from ovserve.llm.parsing.core.dialect import ToolDialect
from ovserve.llm.parsing.core.guide import Guide
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools
from ovserve.llm.parsing.json.call import MARKED, Keys, block


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


class ToolCallsList(TaggedJson):
    """A JSON list in `<tool_calls>`: hunyuan, jamba and apriel, which differ in their end tokens."""

    tags = {"<tool_calls>": ("</tool_calls>",)}
    guide = Guide(
        '{"name": "NAME", "arguments": ',
        "}",
        separator=", ",
        block=("<tool_calls>[", "]</tool_calls>"),
        trigger="<tool_calls>",
    )
