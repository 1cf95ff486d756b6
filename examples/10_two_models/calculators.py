"""TwoModelsCalculator asks two models at the same time, and lets its own model merge the answers.

.venv/bin/ovserve serve --rest_port 8000 --model_name two_models --model_path examples/10_two_models
"""

import asyncio
from collections.abc import AsyncGenerator

import msgspec

from ovserve.calculators.library import Answerer, Context, LlmResources, Question, SidePacket, calculator


class TwoModelsOptions(msgspec.Struct, frozen=True):
    instruction: str = "Merge the two answers into one short answer."
    max_tokens: int = 200


@calculator("TwoModelsCalculator")
class TwoModels(Answerer):
    options_type = TwoModelsOptions
    second = SidePacket("LLM_NODE_RESOURCES:1", LlmResources)

    async def answer(self, cc: Context, question: Question) -> AsyncGenerator[str]:
        options = cc.options(TwoModelsOptions)
        asked = [
            llm.generate(question.messages, max_tokens=options.max_tokens)
            for llm in (cc[self.llm], cc[self.second])
        ]
        first, second = await asyncio.gather(*asked)
        both = f"{options.instruction}\n\nFirst answer: {first.text}\n\nSecond answer: {second.text}"
        messages = [*question.messages, {"role": "user", "content": both}]
        async for packet in cc[self.llm].stream(messages, sampling=question.sampling):
            yield packet.content
