"""LLMExecutorCalculator: a GenerateRequest in, one delta per call out until the engine says finished."""

from __future__ import annotations

from ovserve.access import current_request
from ovserve.errors import ContextLengthExceeded
from ovserve.graph import Context, Input, Output, SidePacket, calculator
from ovserve.kinds.resource import DeltaStream
from ovserve.kinds.text.lengths import explain
from ovserve.kinds.text.resource import LlmCalculator, LlmResources
from ovserve.llm.request import Delta, GenerateRequest


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
        self.stream: DeltaStream | None = None

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
