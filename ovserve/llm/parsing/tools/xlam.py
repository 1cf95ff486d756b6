"""xlam: a JSON list, bare, in a code fence, after the reasoning or in tags. Salesforce xLAM 2.

No template shows it, so it is never detected. Outside of tags a call must name a tool of the request.

Source: read 2026-11-22, https://github.com/vllm-project/vllm/blob/01d3ce8c0e53/vllm/entrypoints/openai/tool_parsers/xlam_tool_parser.py
"""

from __future__ import annotations

from ovserve.llm.parsing.core.cursor import Cursor, Steps
from ovserve.llm.parsing.core.dialect import ToolDialect
from ovserve.llm.parsing.core.guide import Guide
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools
from ovserve.llm.parsing.json.call import MARKED, block, unmarked

_TAGS = {"<tool_call>": ("</tool_call>",), "[TOOL_CALLS]": ()}
_FENCES = ("```json", "```")
_THOUGHT = "</think>"  # text, unless a reasoning dialect takes it; what follows may be a bare list


class Xlam(ToolDialect):
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
