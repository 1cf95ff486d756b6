"""Answerer: writes the answer itself, in place of executor and output parser. It may ask models for it.

    @calculator("PoliteCalculator")
    class Polite(Answerer):
        async def answer(self, cc: Context, question: Question) -> str:
            return "Dear user, " + (await cc[self.llm].generate(question.messages)).text

| port | type | |
|---|---|---|
| input `CONVERSATION` | `GenerateRequest` | from ConversationCalculator or another such node |
| output `PARSED` | `Parsed` | to ResponseWriter |
| side packet `LLM_NODE_RESOURCES` | `LlmResources` | the model that the node's LLMCalculatorOptions name |

`answer` is a coroutine that returns the text, or an asynchronous generator whose pieces are streamed. The
tokens of the models that it asks are in the `usage` of the answer. A client that asks for several answers,
tools, or a format gets an error that says so: they are promises about the output of one model.

LlmModelCalculator has no streams: its LLMCalculatorOptions name one more model for the nodes that share its
side packet. A node reads such a model at `LLM_NODE_RESOURCES:1`, its own at index 0.

Cascade: a small model answers first, and a large one where the small one is not sure.

| port of Cascade | type | |
|---|---|---|
| input `DECODED` | `DecodedRequest` | the request, for the large model |
| input `GENERATE` | `GenerateRequest` | the small model's request, before WithLogprobsCalculator |
| input `PARSED` | `Parsed` | the small model's answer |
| output `PARSED` | `Parsed` | that answer, if it is sure |
| output `DECODED` | `DecodedRequest` | the request, if it is not |

CascadeCalculator is not sure when an answer has fewer than `min_tokens` or more than `max_tokens` tokens, or
a mean log-probability below `min_mean_logprob`. A limit that is not given does not count.
WithLogprobsCalculator (`GENERATE` to `GENERATE`) asks the engine for log-probabilities; a client sees them
only if it asked too. The tokens of the small model are in the usage of the answer either way. What is handed
on counts as the node's event `rejected`. A rule of one's own:

    @calculator("HedgingCalculator")
    class Hedging(Cascade):
        def unsure(self, cc: Context, answer: Completion) -> bool:
            return "I am not sure" in answer.choices[0].content
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import Any

import msgspec

from ovserve.calculators.library.checks import AnswerCheck
from ovserve.calculators.library.messages import messages_of
from ovserve.errors import InvalidArgument
from ovserve.graph import Calculator, Context, Input, Output, SidePacket, calculator
from ovserve.graph.options import awaited, must_override
from ovserve.kinds.text.node import DecodedRequest
from ovserve.kinds.text.resource import LlmCalculator, LlmResources, mean_logprob
from ovserve.llm.output import Completion, Content, Parsed
from ovserve.llm.request import GenerateRequest, Sampling


class Question(msgspec.Struct, frozen=True):
    """`messages` are those of the request; a plain prompt is one message of the user."""

    messages: list[dict[str, Any]]
    sampling: Sampling
    request: GenerateRequest


class Answerer(LlmCalculator):
    """Base of nodes that answer. Override `answer`."""

    runs_on = "loop"

    conversation = Input("CONVERSATION", GenerateRequest)
    parsed = Output("PARSED", Parsed)
    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)

    @must_override
    def answer(self, cc: Context, question: Question) -> Awaitable[str] | AsyncGenerator[str]:
        """Return the answer, or yield its pieces."""
        raise NotImplementedError

    async def process(self, cc: Context) -> None:
        request = cc[self.conversation]
        if request is None:
            return
        _check(request)
        question = Question(await messages_of(cc[self.llm], request), request.sampling, request)
        at = cc.timestamp
        answer: Any = self.answer(cc, question)
        if inspect.isasyncgen(answer):
            async with aclosing(answer):
                piece: str
                async for piece in answer:  # type: ignore[assignment]  # as `answer` declares
                    cc.send(self.parsed, Parsed((Content(piece),)), at)
                    at += 1
                    await cc.flush()
            text = ""
        else:
            text = await answer
        cc.send(self.parsed, Parsed((Content(text),) if text else (), finish_reason="stop", last=True), at)
        cc.finish()


def _check(request: GenerateRequest) -> None:
    if request.sampling.n > 1 or len(request.prompts) > 1:
        raise InvalidArgument.at("n", f"this model answers once, got {request.choices}")
    if request.tools is not None and request.tools.names:
        raise InvalidArgument.at("tools", "this model calls no tools")
    if (constraint := request.sampling.constraint) is not None:
        raise InvalidArgument.at(constraint.param, "this model holds to no format")


@calculator("LlmModelCalculator")
class LlmModel(LlmCalculator):
    runs_on = "loop"

    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)

    def process(self, cc: Context) -> None:
        """Never called: there are no streams."""


class Cascade(AnswerCheck):
    """Base of cascades. Override `unsure`."""

    decoded = Input("DECODED", DecodedRequest)
    escalated = Output("DECODED", DecodedRequest)

    @must_override
    def unsure(self, cc: Context, answer: Completion) -> bool | Awaitable[bool]:
        """Return whether the other model shall answer."""
        raise NotImplementedError

    async def accept(self, cc: Context, answer: Completion) -> bool:
        return not await awaited(self.unsure(cc, answer))

    async def reject(self, cc: Context, request: GenerateRequest, answer: Completion) -> None:
        usage = Parsed(tokens=answer.completion_tokens, other_prompt_tokens=answer.prompt_tokens)
        cc.send(self.checked, usage)
        cc.send(self.escalated, self._decoded)

    async def process(self, cc: Context) -> None:
        decoded = cc[self.decoded]
        if decoded is not None:
            self._decoded = decoded
        await super().process(cc)


class CascadeOptions(msgspec.Struct, frozen=True):
    min_mean_logprob: float | None = None
    min_tokens: int = 0
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.min_mean_logprob is not None and self.min_mean_logprob > 0:
            raise ValueError(
                f"min_mean_logprob: a logarithm of a probability is at most 0, got {self.min_mean_logprob}"
            )
        if self.max_tokens is not None and self.max_tokens < self.min_tokens:
            raise ValueError(f"max_tokens {self.max_tokens} is below min_tokens {self.min_tokens}")


@calculator("CascadeCalculator")
class LimitCascade(Cascade):
    """Every choice must be within the limits."""

    options_type = CascadeOptions

    def unsure(self, cc: Context, answer: Completion) -> bool:
        options = cc.options(CascadeOptions)
        tokens = answer.completion_tokens / len(answer.choices)
        if tokens < options.min_tokens or (options.max_tokens is not None and tokens > options.max_tokens):
            return True
        means = [mean_logprob(choice.logprobs) for choice in answer.choices]
        least = options.min_mean_logprob
        return least is not None and any(mean is not None and mean < least for mean in means)


@calculator("WithLogprobsCalculator")
class WithLogprobs(Calculator):
    """Beam search has no log-probabilities of tokens, so its requests go through as they are."""

    request = Input("GENERATE", GenerateRequest)
    asking = Output("GENERATE", GenerateRequest)

    def process(self, cc: Context) -> None:
        request = cc[self.request]
        if request is None:
            return
        if request.sampling.beams == 1:
            sampling = msgspec.structs.replace(request.sampling, logprobs=True)
            request = msgspec.structs.replace(request, sampling=sampling)
        cc.send(self.asking, request)


ENDS = ("stop", "length")


@calculator("AnswerAppendCalculator")
class AnswerAppend(Calculator):
    """Text of another node at the end of each choice, such as the sources of an answer.

    | port | type | |
    |---|---|---|
    | input `GENERATE` | `GenerateRequest` | |
    | input `PARSED` | `Parsed` | from OutputParser |
    | input `TEXT` | `str` | one packet, at the first timestamp; without it nothing is appended |
    | output `PARSED` | `Parsed` | |

    Nothing is appended to a choice that ended with tool calls, that was filtered, or whose format the request
    prescribes: `response_format` with text behind it would not be the format.
    """

    request = Input("GENERATE", GenerateRequest)
    parsed = Input("PARSED", Parsed)
    text = Input("TEXT", str)
    appended = Output("PARSED", Parsed)

    def __init__(self) -> None:
        self._text, self._formatted = "", False

    def process(self, cc: Context) -> None:
        self._text = cc[self.text] or self._text
        request, parsed = cc[self.request], cc[self.parsed]
        if request is not None and request.sampling.constraint is not None:
            self._formatted = True
        if parsed is None:
            return
        if self._text and not self._formatted and parsed.finish_reason in ENDS:
            parsed = msgspec.structs.replace(parsed, parts=(*parsed.parts, Content(self._text)))
        cc.send(self.appended, parsed)
