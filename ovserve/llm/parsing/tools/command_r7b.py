"""command_r7b: a JSON list in `<|START_ACTION|>` with keys of its own. Cohere Command R7B and Command A.

The model numbers its calls; templates require the number.

Source: read 2026-11-22, https://github.com/vllm-project/vllm/blob/0a024b5698d7/vllm/entrypoints/openai/tool_parsers/command_tool_parser.py
"""

from __future__ import annotations

from ovserve.llm.parsing.core.guide import Guide
from ovserve.llm.parsing.json.call import Keys
from ovserve.llm.parsing.tools.tagged import TaggedJson


class CommandR7b(TaggedJson):
    name = "command_r7b"
    tags = {"<|START_ACTION|>": ("<|END_ACTION|>",)}
    keys = Keys(name=("tool_name", "name"), id=("tool_call_id",))
    erase = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|END_OF_TURN_TOKEN|>")
    guide = Guide(
        '{"tool_name": "NAME", "parameters": ',
        "}",
        separator=", ",
        block=("<|START_ACTION|>[", "]<|END_ACTION|>"),
        trigger="<|START_ACTION|>",
    )

    def matches(self, template: str) -> bool:
        return "<|START_ACTION|>" in template
