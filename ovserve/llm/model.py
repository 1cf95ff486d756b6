"""ModelContext: facts about a model for request parsing: template, limits, defaults. Made when a graph is
loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ovserve.errors import InvalidArgument
from ovserve.llm.chat_template import ChatTemplate
from ovserve.llm.decoding import Mode
from ovserve.llm.fim import Fim
from ovserve.llm.grammar.constraint import Constraint
from ovserve.llm.grammar.guidance import guided
from ovserve.llm.images import Vision
from ovserve.llm.parsing import implicit_reasoning_start, markup, reasoning_closed
from ovserve.llm.parsing.registry import ParserChoice, default
from ovserve.llm.request import Parsing, Sampling, ToolPolicy


@dataclass(frozen=True)
class ModelContext:
    """One servable's view of its model. `defaults`: its generation_config.json, without nulls."""

    template: ChatTemplate | None = None
    max_length: int | None = None  # tokens of context
    vocab_size: int = 0  # 0: unknown
    max_tokens_limit: int | None = None  # graph option: cap, and default when the request names none
    best_of_limit: int = 20
    repetition_detection: bool = True  # graph option: answers that only repeat themselves are ended
    decoding: Mode = "plain"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    parsers: ParserChoice = field(default_factory=ParserChoice)
    end_tokens: tuple[str, ...] = ()  # texts of the tokens that end an answer
    vision: Vision | None = None  # None: it takes text only
    fim: Fim | None = None  # how it fills in the middle, if it does
    guide_tools: bool = False  # graph option: optional calls follow their schemas too

    def max_tokens(self, requested: int | None, param: str) -> int | None:
        """Return how many tokens to ask the engine for; it clamps to the room left. None: all the room. -1 is
        how clients of llama.cpp ask for it.

        Raises InvalidArgument when the client asks for more than the graph allows (limits are inclusive).
        """
        limit = self.max_tokens_limit
        if requested in (None, -1):
            default = self.defaults.get("max_new_tokens")
            limits = [n for n in (limit, default) if n is not None]
            return min(limits) if limits else None
        if limit is not None and requested > limit:
            raise InvalidArgument(
                f"{param}: {requested} is above max_tokens_limit {limit} of this graph", param=param
            )
        return requested

    @property
    def lacks_tools(self) -> str | None:
        """Return why this model cannot be given tools, or None. With `tool_parser: "none"` it can: the
        operator wants its calls as they are written."""
        if self.template is None:
            why = "it has no chat template"
        elif self.template.tool_prompt is None:
            why = "its chat template has no place for tools; see generic_tool_prompt of its graph"
        elif self.parsers.tool is None and self.parsers.tool_from != "off":
            why = "no tool parser is known for its chat template; set tool_parser in its graph"
        else:
            return None
        # Clients of Ollama's look for its words and ask again without tools.
        return f"the model does not support tools: {why}"

    def parsing(
        self, prompt: str, sampling: Sampling, tools: ToolPolicy | None = None, prefill: str = ""
    ) -> Parsing | None:
        """Return how the answer to a rendered chat prompt is parsed. None: not at all, because the model has
        no parsers, or since the client wants the text with its special tokens. `prefill` is the client's
        beginning of the answer."""
        tool, reasoning = self.parsers.tool, self.parsers.reasoning
        if tools is None and self.template is not None and self.template.tool_prompt == "generic":
            tool = None  # its form of calls is known to the model from the prompt alone
        if not sampling.skip_special_tokens or not (tool or reasoning):
            return None
        return Parsing(
            tool,
            reasoning,
            implicit_reasoning_start(reasoning, prompt, prefill),
            reasoning_closed(reasoning, prompt, prefill),
            self.end_tokens,
            sampling.constraint is not None,
        )

    @staticmethod
    def with_markup(sampling: Sampling, parsing: Parsing | None, tools: ToolPolicy | None) -> Sampling:
        """Add the texts whose special tokens the parsing of the answer needs."""
        if parsing is None:
            return sampling
        calls = tools is not None and tools.calls
        return msgspec.structs.replace(sampling, markup=markup(parsing.tool, parsing.reasoning, calls=calls))

    def constrained(
        self, prompt: str, sampling: Sampling, tools: ToolPolicy | None, prefill: str = ""
    ) -> Sampling:
        """Add the grammar of the whole answer to a rendered chat prompt (llm/grammar/guidance.py)."""
        if sampling.constraint is None and tools is None:
            return sampling
        constraint = guided(
            tools,
            sampling.constraint,
            tool=self.parsers.tool,
            reasoning=self.parsers.reasoning,
            inside_reasoning=implicit_reasoning_start(self.parsers.reasoning, prompt, prefill),
            reasoning_closed=reasoning_closed(self.parsers.reasoning, prompt, prefill),
            guide_auto=self.guide_tools,
        )
        calls = tools is not None and tools.choice == "required"
        if constraint is not None and sampling.constraint is not None and not calls:
            constraint = self._continued(constraint, prompt, prefill)
        return msgspec.structs.replace(sampling, constraint=constraint)

    def _continued(self, constraint: Constraint, prompt: str, prefill: str) -> Constraint:
        """Return the constraint of an answer that goes on where the client's `prefill` ends."""
        dialect, text = default().reasoning(self.parsers.reasoning), prefill.lstrip()
        if dialect is not None and text.startswith(dialect.starts):
            ends = [text.index(end) + len(end) for end in dialect.ends if end in text]
            text = text[min(ends, default=len(text)) :].lstrip()
        if text and self.decoding != "paged":
            raise InvalidArgument(
                f"{constraint.param}: only the paged engine continues an answer in a format",
                param=constraint.param,
            )
        begun = text if prompt.endswith(text) else text.rstrip()  # some templates trim
        return msgspec.structs.replace(constraint, begun=begun)

    def with_reasoning_tags(self, prompt: str, sampling: Sampling, prefill: str = "") -> Sampling:
        """Add to the budget of the reasoning, if there is one, where that begins and ends after a rendered
        chat prompt. Raises InvalidArgument for a message that would end it too early."""
        budget, dialect = sampling.reasoning_budget, default().reasoning(self.parsers.reasoning)
        if budget is None or dialect is None:
            return sampling
        for text in (*dialect.starts, *dialect.ends, *dialect.foreign):
            if text in budget.message:
                raise InvalidArgument(
                    f"reasoning_budget_message: has {text!r}, with which this model marks its answers",
                    param="reasoning_budget_message",
                )
        closed = reasoning_closed(self.parsers.reasoning, prompt, prefill)
        inside = implicit_reasoning_start(self.parsers.reasoning, prompt, prefill)
        return msgspec.structs.replace(
            sampling,
            reasoning_budget=msgspec.structs.replace(
                budget,
                starts=dialect.starts,
                ends=dialect.ends,
                closing=dialect.ends[0] + dialect.after,
                inside=inside or (dialect.always and not closed),
                anywhere=dialect.framed,
                held=sampling.constraint is not None,
            ),
        )

    def parts(
        self,
        messages: Sequence[Mapping[str, Any]],
        kwargs: Mapping[str, Any],
        tools: ToolPolicy | None = None,
    ) -> list[tuple[str, str]]:
        """The prompt by its parts, as text to count: system, tools, history, last message. For length
        errors."""
        tool_texts = (
            [msgspec.json.encode(tool).decode() for tool in tools.prompt_tools] if tools is not None else []
        )
        texts: dict[str, list[str]] = {"system": []} | ({"tools": tool_texts} if tool_texts else {})
        texts |= {"history": [], "last message": []}
        for i, message in enumerate(messages):
            system = message["role"] in ("system", "developer")
            name = "last message" if i == len(messages) - 1 else "system" if system else "history"
            texts[name] += [str(v) for k in ("content", "tool_calls") if (v := message.get(k))]
        return [(name, "\n".join(group)) for name, group in texts.items()]
