"""mistral: a JSON list after `[TOOL_CALLS]`. Mistral 7B v0.3, Nemo, Small 2409; v11 and later as devstral.

The token is often lost, so an answer that starts with `[{` may be one too, if it names a tool of the request.

Source: read 2026-11-22, https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/mistral/tool_parser.cpp
"""

from __future__ import annotations

from ovserve.llm.parsing.core.cursor import Cursor, Steps
from ovserve.llm.parsing.core.guide import Guide
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools
from ovserve.llm.parsing.json.call import call_list, unmarked
from ovserve.llm.parsing.tools.devstral import Devstral, good_id


class Mistral(Devstral):
    name = "mistral"
    bare = "["
    guide = Guide(
        '{"name": "NAME", "arguments": ',
        "}",
        separator=", ",
        block=("[TOOL_CALLS] [", "]"),
        trigger="[TOOL_CALLS]",
    )

    def matches(self, template: str) -> bool:
        return "[TOOL_CALLS]" in template or "[AVAILABLE_TOOLS]" in template

    def calls(self, cur: Cursor, out: Output, tools: Tools) -> Steps[None]:
        if (yield from cur.literal("[TOOL_CALLS]")):
            yield from self.tagged(cur, out)
        else:
            yield from call_list(cur, out, unmarked(tools, good_id))
