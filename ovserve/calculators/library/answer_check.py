"""AnswerCheck: decides about a whole answer before a client gets any of it.

    @calculator("PoliteCalculator")
    class Polite(AnswerCheck):
        message = "I would rather not say."

        def accept(self, cc: Context, answer: Completion) -> bool:
            return "stupid" not in answer.choices[0].content

| port | type | |
|---|---|---|
| input `GENERATE` | `GenerateRequest` | the request as the client meant it |
| input `PARSED` | `Parsed` | from OutputParser |
| output `PARSED` | `Parsed` | |
| side packet `LLM_NODE_RESOURCES` | `LlmResources`, optional | a model to ask |

An accepted answer follows as it came. One that is not becomes `message` with the finish reason
`content_filter`, and counts as the node's event `rejected`. A stream begins when the decision is made.
"""

from __future__ import annotations

from collections.abc import Awaitable

import msgspec

from ovserve.calculators.library.text_filter import CONTENT_FILTER
from ovserve.graph import Calculator, Context, Input, Output, SidePacket
from ovserve.graph.overrides import awaited, must_override
from ovserve.kinds.text.resource import LlmResources
from ovserve.llm.output import Completion, Content, Parsed
from ovserve.llm.request import GenerateRequest


class AnswerCheck(Calculator):
    """Base of checks. Override `accept`; override `reject` for another end than a message."""

    runs_on = "loop"
    message: str = "The answer was withheld."

    request = Input("GENERATE", GenerateRequest)
    parsed = Input("PARSED", Parsed)
    checked = Output("PARSED", Parsed)
    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources, optional=True)

    def __init__(self) -> None:
        self._packets: list[Parsed] = []
        self._answer = Completion()
        self._request: GenerateRequest | None = None

    @must_override
    def accept(self, cc: Context, answer: Completion) -> bool | Awaitable[bool]:
        """Return whether the client gets the answer."""
        raise NotImplementedError

    async def reject(self, cc: Context, request: GenerateRequest, answer: Completion) -> None:
        """Send what the client gets instead, beginning at `cc.timestamp`."""
        at = cc.timestamp
        begun = Parsed(prompt_tokens=answer.prompt_tokens, cached_tokens=answer.cached_tokens)
        begun.tokens, begun.max_tokens = answer.completion_tokens, answer.max_tokens
        cc.send(self.checked, begun, at)
        for index in range(request.choices):
            text = (Content(self.message),) if self.message else ()
            end = Parsed(text, index=index, finish_reason=CONTENT_FILTER, last=index == request.choices - 1)
            cc.send(self.checked, end, at + 1 + index)

    async def process(self, cc: Context) -> None:
        self._request = cc[self.request] or self._request
        parsed = cc[self.parsed]
        if parsed is None:
            return
        self._packets.append(parsed)
        self._answer.add(parsed)
        if not parsed.last:
            return
        assert self._request is not None, "GENERATE comes at the first timestamp"
        if await awaited(self.accept(cc, self._answer)):
            for i, packet in enumerate(self._packets):
                cc.send(self.checked, self.shown(packet), cc.timestamp + i)
        else:
            cc.count("rejected")
            await self.reject(cc, self._request, self._answer)
        cc.finish()

    def shown(self, packet: Parsed) -> Parsed:
        """Return an accepted packet as the client gets it: without logprobs that it did not ask for."""
        assert self._request is not None
        if packet.logprobs is None or self._request.sampling.logprobs:
            return packet
        return msgspec.structs.replace(packet, logprobs=None)
