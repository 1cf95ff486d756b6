"""Nodes to compose graphs with, and base classes of nodes of one's own. docs/calculators.md lists them.

from ovserve.calculators.library import TextMap
"""

from ovserve.calculators.author_llm import mean_logprob
from ovserve.calculators.library import (
    answer_append,
    answer_cache,
    cascade,
    conversation,
    conversation_memory,
    counter,
    gate,
    limiter,
    merge,
    prompt_insertion,
    text_filter,
    text_map,
)
from ovserve.calculators.library.answer_check import AnswerCheck
from ovserve.calculators.library.cascade import Cascade
from ovserve.calculators.library.conversation_memory import ConversationMemory
from ovserve.calculators.library.messages import prompt_text, question, with_system_text
from ovserve.calculators.library.prompt_check import PromptCheck
from ovserve.calculators.library.prompt_insertion import PromptInsertion
from ovserve.calculators.library.server_tools import ServerTools, Toolbox, ToolResult, tool
from ovserve.calculators.library.switch import RequestSwitch, Switch
from ovserve.calculators.library.text_filter import TextFilter
from ovserve.calculators.library.text_map import TextMap
from ovserve.calculators.library.tool_rounds import answer_with_tools

MODULES = (
    answer_append,
    answer_cache,
    cascade,
    conversation,
    conversation_memory,
    counter,
    gate,
    limiter,
    merge,
    prompt_insertion,
    text_filter,
    text_map,
)

__all__ = [
    "MODULES",
    "AnswerCheck",
    "Cascade",
    "ConversationMemory",
    "PromptCheck",
    "PromptInsertion",
    "RequestSwitch",
    "ServerTools",
    "Switch",
    "TextFilter",
    "TextMap",
    "ToolResult",
    "Toolbox",
    "answer_with_tools",
    "mean_logprob",
    "prompt_text",
    "question",
    "tool",
    "with_system_text",
]
