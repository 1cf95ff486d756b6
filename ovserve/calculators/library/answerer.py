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
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import Any

import msgspec

from ovserve.calculators.library.messages import messages_of
from ovserve.errors import InvalidArgument
from ovserve.graph import Context, Input, Output, SidePacket, calculator
from ovserve.graph.overrides import must_override
from ovserve.kinds.text.resource import LlmCalculator, LlmResources
from ovserve.llm.output import Content, Parsed
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
        raise InvalidArgument(f"n: this model answers once, got {request.choices}", param="n")
    if request.tools is not None and request.tools.names:
        raise InvalidArgument("tools: this model calls no tools", param="tools")
    if (constraint := request.sampling.constraint) is not None:
        raise InvalidArgument(f"{constraint.param}: this model holds to no format", param=constraint.param)


@calculator("LlmModelCalculator")
class LlmModel(LlmCalculator):
    runs_on = "loop"

    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)

    def process(self, cc: Context) -> None:
        """Never called: there are no streams."""
