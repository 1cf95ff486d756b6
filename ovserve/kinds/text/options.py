"""LLMCalculatorOptions of a graph node: parsed once, when the graph is loaded, into `LlmOptions`.

Every field parses; what is not supported is rejected by name. Defaults are the message's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ovserve.engine.protocol.specs import GenerationSpec
from ovserve.errors import LoadError
from ovserve.graph import Node
from ovserve.kinds.text.engine_spec import EngineOptions, engine_options
from ovserve.llm.chat_template import GENERIC_PARSER
from ovserve.llm.parsing.registry import check_pair
from ovserve.protos.llm_pb2 import LLMCalculatorOptions


def parse_template_options(node: Node, options: LLMCalculatorOptions) -> str | None:
    """The chat template in place of the model's, if any. Raises LoadError naming the field.

    Its file is relative to the graph's base directory.
    """
    if options.generic_tool_prompt and options.tool_parser not in ("", "none", GENERIC_PARSER):
        raise node.error(
            f"true asks for calls in the form of {GENERIC_PARSER}, and tool_parser is "
            f"{options.tool_parser!r}",
            "generic_tool_prompt",
        )
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


LIMITS = ("max_queue", "max_queue_tokens", "queue_timeout", "request_timeout", "stall_timeout")


@dataclass(frozen=True)
class LlmOptions:
    """LLMCalculatorOptions of one node, checked; paths are resolved, files are read."""

    engine: EngineOptions
    chat_template_path: str
    tool_parser: str  # "": the chat template decides
    reasoning_parser: str
    template: str | None  # the graph's own chat template, in place of the model's
    generic_tool_prompt: bool
    guide_tools: bool
    best_of_limit: int
    max_tokens_limit: int | None
    repetition_detection: bool
    limits: Mapping[str, float]  # those of the queue and of time that the graph sets

    @property
    def spec(self) -> GenerationSpec:
        return self.engine.spec


def parse_llm_options(node: Node) -> LlmOptions:
    """Raises LoadError naming the field, with all other mistakes of the node."""
    options = node.required_options(LLMCalculatorOptions)
    faults = list(_wrong_numbers(node, options))
    template = engine = None
    try:
        check_pair(options.tool_parser, options.reasoning_parser)
    except LoadError as exc:
        faults.append(node.error(exc.reason, exc.field))
    try:
        template = parse_template_options(node, options)
    except LoadError as exc:
        faults.append(exc)
    try:
        if not options.models_path:
            raise node.error("required, but missing", "models_path")
        engine = engine_options(node, options)
    except LoadError as exc:
        faults.append(exc)
    if faults or engine is None:
        raise LoadError.of(faults)
    return LlmOptions(
        engine=engine,
        chat_template_path=options.chat_template_path,
        tool_parser=options.tool_parser,
        reasoning_parser=options.reasoning_parser,
        template=template,
        generic_tool_prompt=options.generic_tool_prompt,
        guide_tools=options.enable_tool_guided_generation,
        best_of_limit=options.best_of_limit,
        max_tokens_limit=options.max_tokens_limit if options.HasField("max_tokens_limit") else None,
        repetition_detection=options.repetition_detection,
        limits={name: getattr(options, name) for name in LIMITS if options.HasField(name)},  # type: ignore[arg-type]
    )


def _wrong_numbers(node: Node, options: LLMCalculatorOptions) -> Iterator[LoadError]:
    for name in ("max_num_batched_tokens", "max_num_seqs", "best_of_limit"):
        if getattr(options, name) == 0:
            yield node.error("expected at least 1, got 0", name)
    if options.HasField("max_tokens_limit") and options.max_tokens_limit == 0:
        yield node.error("expected at least 1, got 0", "max_tokens_limit")
    if options.HasField("max_model_len") and options.max_model_len < 2:
        yield node.error(
            f"expected at least 2, one for the prompt and one for the answer, got {options.max_model_len}",
            "max_model_len",
        )
    for name in ("queue_timeout", "request_timeout"):
        if options.HasField(name) and not getattr(options, name) > 0:  # type: ignore[arg-type]
            yield node.error(f"expected more than 0 seconds, got {getattr(options, name):g}", name)
    if options.HasField("stall_timeout") and not options.stall_timeout >= 0:
        yield node.error(f"expected 0 seconds or more, got {options.stall_timeout:g}", "stall_timeout")
    if not options.dynamic_split_fuse and 0 < options.max_num_batched_tokens < options.max_num_seqs:
        yield node.error(
            f"{options.max_num_batched_tokens} is less than max_num_seqs {options.max_num_seqs}; without "
            "dynamic_split_fuse every sequence needs a token of each step",
            "max_num_batched_tokens",
        )
