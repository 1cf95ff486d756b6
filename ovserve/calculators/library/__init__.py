"""The one module that a calculator of one's own imports from: ports, packets, errors, base classes, nodes.

    from ovserve.calculators.library import Context, TextMap, calculator

docs/calculators.md explains them.
"""

from ovserve.calculators.library import (
    answer_append,
    answerer,
    cascade,
    conversation,
    conversation_memory,
    mcp_servers,
    merge,
    text_filter,
)
from ovserve.calculators.library.answer_check import AnswerCheck
from ovserve.calculators.library.answerer import Answerer, Question
from ovserve.calculators.library.cascade import Cascade
from ovserve.calculators.library.conversation_memory import ConversationMemory
from ovserve.calculators.library.messages import messages_of, prompt_text, question, with_system_text
from ovserve.calculators.library.observer import Exchange, Observer
from ovserve.calculators.library.prompt_check import PromptCheck
from ovserve.calculators.library.prompt_insertion import PromptInsertion
from ovserve.calculators.library.server_tools import ServerTools, Toolbox, tool
from ovserve.calculators.library.switch import RequestSwitch, Switch
from ovserve.calculators.library.text_filter import TextFilter
from ovserve.calculators.library.text_map import TextMap
from ovserve.calculators.library.tool_rounds import answer_with_tools
from ovserve.errors import ContentFiltered, InvalidArgument, LoadError, RateLimited
from ovserve.graph import (
    Calculator,
    Context,
    Input,
    LoadContext,
    Output,
    SideOutput,
    SidePacket,
    calculator,
)
from ovserve.kinds.text.author_llm import Generated, mean_logprob
from ovserve.kinds.text.http_frontend import DecodedRequest
from ovserve.kinds.text.resource import LlmCalculator, LlmResources
from ovserve.llm.output import Completion, Content, Parsed, Reasoning, ToolCallDelta, ToolResult
from ovserve.llm.request import GenerateRequest, Sampling

MODULES = (
    answer_append,
    answerer,
    cascade,
    conversation,
    conversation_memory,
    mcp_servers,
    merge,
    text_filter,
)

__all__ = [
    "MODULES",
    "AnswerCheck",
    "Answerer",
    "Calculator",
    "Cascade",
    "Completion",
    "Content",
    "ContentFiltered",
    "Context",
    "ConversationMemory",
    "DecodedRequest",
    "Exchange",
    "GenerateRequest",
    "Generated",
    "Input",
    "InvalidArgument",
    "LlmCalculator",
    "LlmResources",
    "LoadContext",
    "LoadError",
    "Observer",
    "Output",
    "Parsed",
    "PromptCheck",
    "PromptInsertion",
    "Question",
    "RateLimited",
    "Reasoning",
    "RequestSwitch",
    "Sampling",
    "ServerTools",
    "SideOutput",
    "SidePacket",
    "Switch",
    "TextFilter",
    "TextMap",
    "ToolCallDelta",
    "ToolResult",
    "Toolbox",
    "answer_with_tools",
    "calculator",
    "mean_logprob",
    "messages_of",
    "prompt_text",
    "question",
    "tool",
    "with_system_text",
]
