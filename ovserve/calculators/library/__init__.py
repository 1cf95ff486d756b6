"""The one module that a calculator of one's own imports from: ports, packets, errors, base classes, nodes.

    from ovserve.calculators.library import Context, TextMap, calculator

docs/calculators.md explains them.
"""

from ovserve.calculators.library.answerer import Answerer, Cascade, Question
from ovserve.calculators.library.checks import AnswerCheck, Exchange, Observer, PromptCheck
from ovserve.calculators.library.conversation import ConversationMemory, PromptInsertion
from ovserve.calculators.library.messages import messages_of, prompt_text, question, with_system_text
from ovserve.calculators.library.server_tools import ServerTools, Toolbox, answer_with_tools, tool
from ovserve.calculators.library.streams import RequestSwitch, Switch
from ovserve.calculators.library.text_filter import TextFilter
from ovserve.calculators.library.text_map import TextMap
from ovserve.errors import ContentFiltered, InvalidArgument, LoadError, RateLimited
from ovserve.graph import Calculator, Context, Input, LoadContext, Output, SideOutput, SidePacket, calculator
from ovserve.kinds.text.node import DecodedRequest
from ovserve.kinds.text.resource import Generated, LlmCalculator, LlmResources, mean_logprob
from ovserve.llm.output import Completion, Content, Parsed, Reasoning, ToolCallDelta, ToolResult
from ovserve.llm.request import GenerateRequest, Sampling

__all__ = [
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
