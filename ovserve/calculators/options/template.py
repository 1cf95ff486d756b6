"""Options of an LLM node about its chat template: a file in place of the model's, a generic tool prompt.

Called by `llm.py`.
"""

from __future__ import annotations

from ovserve.graph import Node
from ovserve.llm.prompt.generic_tools import PARSER
from ovserve.protos.llm_pb2 import LLMCalculatorOptions


def parse_template_options(node: Node, options: LLMCalculatorOptions) -> str | None:
    """The chat template in place of the model's, if any. Raises LoadError naming the field."""
    if options.generic_tool_prompt and options.tool_parser not in ("", "none", PARSER):
        raise node.error(
            f"true asks for calls in the form of {PARSER}, and tool_parser is {options.tool_parser!r}",
            "generic_tool_prompt",
        )
    return _own_template(node, options)


def _own_template(node: Node, options: LLMCalculatorOptions) -> str | None:
    """The file that replaces the model's chat template, if any; relative to the graph's base directory."""
    if not options.chat_template_path:
        return None
    path = (node.config.base / options.chat_template_path).resolve()
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise node.error(f"{path}: {why}", "chat_template_path", options.chat_template_path) from None
    if not text.strip():
        raise node.error(f"{path} is empty", "chat_template_path", options.chat_template_path)
    return text
