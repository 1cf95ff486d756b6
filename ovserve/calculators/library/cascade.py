"""Cascade: a small model answers first, and a large one where the small one is not sure.

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

from collections.abc import Awaitable

import msgspec

from ovserve.calculators.library.answer_check import AnswerCheck
from ovserve.graph import Calculator, Context, Input, Output, calculator
from ovserve.graph.overrides import awaited, must_override
from ovserve.kinds.text.author_llm import mean_logprob
from ovserve.kinds.text.http_frontend import DecodedRequest
from ovserve.llm.output import Completion, Parsed
from ovserve.llm.request import GenerateRequest


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
