"""The nodes between the frontend and the writer.

- RequestParserCalculator: template, limits and sampling turn a decoded body into one GenerateRequest.
- LLMExecutorCalculator: a GenerateRequest in, one delta per call out until the engine says finished.
- OutputParserCalculator: model text becomes content, reasoning and tool calls, by the request's dialects.

When the engine says ContextLengthExceeded, the error explains why the prompt does not fit: the tokens of each
of its parts, and what would fit. Counting costs nothing until then, and a prompt that is too long by its
bytes alone is never counted. Parts are counted by themselves, so the template's own tokens and the seams
between parts are what is left over.
"""

from __future__ import annotations

from typing import cast

from ovserve.access import current_request
from ovserve.engine.admission.text import AdmittedText
from ovserve.engine.client.text import TooLongUncounted
from ovserve.engine.protocol.admission import context_limit
from ovserve.errors import ContextLengthExceeded, OvserveError
from ovserve.graph import Calculator, Context, Input, Output, SidePacket, calculator
from ovserve.kinds.resource import Transcriber
from ovserve.kinds.text.http_frontend import DecodedRequest
from ovserve.kinds.text.resource import LlmCalculator, LlmResources
from ovserve.llm.output import Parsed
from ovserve.llm.output_parser import OutputParser as Parser
from ovserve.llm.request import Delta, GenerateRequest

TEMPLATE = "template"
PARAMS = {"completions": "prompt", "responses": "input"}  # the field of an endpoint's prompt


async def explain(
    error: ContextLengthExceeded, llm: LlmResources, request: GenerateRequest
) -> ContextLengthExceeded:
    """Return the error with numbers by part; unchanged without parts, or if the engine has died."""
    limit = context_limit(llm.model.max_length, None, request.sampling.max_context)
    error.param = PARAMS.get(request.presentation.endpoint, "messages")
    if request.parts is None or limit is None or request.images:  # whose tokens are in no part
        return error
    if isinstance(error, TooLongUncounted):
        return error
    parts = request.parts()
    try:
        whole, *each = await llm.engine.tokenize(
            [str(request.prompts[0]), *(text for _, text in parts)],
            add_special_tokens=request.add_special_tokens,
        )
    except OvserveError:
        return error
    total, room = len(whole), limit - 1  # one token is left for the answer
    counts = {name: len(ids) for (name, _), ids in zip(parts, each, strict=True)}
    counts[TEMPLATE] = max(0, total - sum(counts.values()))
    over = total - room
    fits = {name: n - over for name, n in counts.items() if name != TEMPLATE and n >= over}
    listed = ", ".join(f"{name} {n}" for name, n in counts.items())
    explained = ContextLengthExceeded(
        f"{error.message} By part: {listed}. {_advice(fits, over)}",
        param=error.param,
    )
    explained.details = {"max_length": limit, "prompt_tokens": total, "parts": counts, "would_fit": fits}
    return explained


def _advice(fits: dict[str, int], over: int) -> str:
    if not fits:
        return f"No part alone can be cut enough: together they must lose {over}."
    return "It would fit with " + ", or ".join(f"at most {n} of {name}" for name, n in fits.items()) + "."


@calculator("RequestParserCalculator")
class RequestParser(Calculator):
    runs_on = "loop"
    decoded = Input("DECODED", DecodedRequest)
    generate = Output("GENERATE", GenerateRequest)
    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)
    speech = SidePacket("STT_NODE_RESOURCES", object, optional=True)  # a Transcriber

    async def process(self, cc: Context) -> None:
        request = cc[self.decoded]
        if request is not None:
            llm = cc[self.llm]
            cc.send(
                self.generate,
                await llm.rendered(await request.to_request(llm), cast(Transcriber | None, cc[self.speech])),
            )


@calculator("LLMExecutorCalculator")
class LLMExecutor(LlmCalculator):
    """LOOPBACK asks for the next call; leaving it unsent ends the answer. Closing early aborts the engine."""

    runs_on = "loop"

    request = Input("GENERATE", GenerateRequest)
    tick_in = Input("LOOPBACK", bool)
    delta = Output("DELTA", Delta)
    tick_out = Output("LOOPBACK", bool)
    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)

    async def open(self, cc: Context) -> None:
        self.stream: AdmittedText | None = None

    async def process(self, cc: Context) -> None:
        request = cc[self.request]
        if request is not None:
            self.generate = request
        try:
            if request is not None:
                self.stream = await cc[self.llm].engine.generate(request)
            assert self.stream is not None, "LOOPBACK only ticks after a request"
            delta = await self.stream.next()
        except ContextLengthExceeded as exc:
            raise await explain(exc, cc[self.llm], self.generate) from exc
        current_request().count(0, delta.tokens)
        cc.send(self.delta, delta)
        if not delta.last:
            cc.send(self.tick_out, True)

    async def close(self, cc: Context) -> None:
        if self.stream is not None:
            self.stream.abort_if_running()


@calculator("OutputParserCalculator")
class OutputParser(Calculator):
    request = Input("GENERATE", GenerateRequest)
    delta = Input("DELTA", Delta)
    parsed = Output("PARSED", Parsed)

    def open(self, cc: Context) -> None:
        self.parser: Parser | None = None

    def process(self, cc: Context) -> None:
        request, delta = cc[self.request], cc[self.delta]
        if request is not None:
            self.parser = Parser(request.parsing, request.tools)
        if delta is not None:
            assert self.parser is not None, "GENERATE comes at the first timestamp"
            cc.send(self.parsed, self.parser.feed(delta))
