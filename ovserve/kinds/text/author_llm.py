"""The functions of a model for a calculator's author: tokenize, detokenize, render, generate.

    class Judge(Calculator):
        llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)

        async def process(self, cc: Context) -> None:
            answer = await cc[self.llm].generate([{"role": "user", "content": "Is 7 prime?"}], max_tokens=5)

Tokens that a calculator generates so are in the `usage` of the answer and count for the caller's limits.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from ovserve.access import current_request
from ovserve.engine.admission.text import TextAdmission
from ovserve.errors import InvalidArgument
from ovserve.llm.model import ModelContext
from ovserve.llm.output import Completion, Parsed
from ovserve.llm.output_parser import OutputParser
from ovserve.llm.prompt.chat_template import Conversation, EncodedConversation
from ovserve.llm.request import GenerateRequest, Sampling, TokenLogprob
from ovserve.llm.tooling import ToolPolicy

Messages = Sequence[Mapping[str, Any]]


class Generated(msgspec.Struct, frozen=True):
    """A whole answer. `finish_reason` is "stop" or "length"."""

    text: str
    reasoning: str
    finish_reason: str | None
    prompt_tokens: int
    tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()  # with `Sampling(logprobs=True)`

    @property
    def mean_logprob(self) -> float | None:
        """The mean natural logarithm of the tokens' probabilities; None without logprobs."""
        return mean_logprob(self.logprobs)


def mean_logprob(tokens: Sequence[TokenLogprob]) -> float | None:
    logprobs = [token.logprob for token in tokens if token.logprob is not None]
    return sum(logprobs) / len(logprobs) if logprobs else None


class AuthorLlm:
    """The author's part of `LlmResources`."""

    engine: TextAdmission
    model: ModelContext

    async def rendered(self, request: GenerateRequest) -> GenerateRequest:
        raise NotImplementedError

    async def render(self, conversation: Conversation | EncodedConversation | Messages) -> str:
        """Return the prompt for messages."""
        raise NotImplementedError

    async def tokenize(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of the text's tokens."""
        (row,) = await self.engine.tokenize([text], add_special_tokens=add_special_tokens)
        return row

    async def detokenize(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        (text,) = await self.engine.detokenize([tokens], skip_special_tokens=skip_special_tokens)
        return text

    def conversation(self, messages: Messages, tools: ToolPolicy | None = None) -> Conversation:
        """Return messages as the input of `render`. Raises InvalidArgument without a chat template, and for
        tools that would not reach the model."""
        if self.model.template is None:
            raise InvalidArgument("the model has no chat template, so it takes text and no messages")
        return self.model.template.conversation(
            messages, tools=tools.prompt_tools if tools is not None else None
        )

    async def stream(
        self,
        prompt: str | Messages,
        *,
        max_tokens: int = 256,
        sampling: Sampling | None = None,
        tools: ToolPolicy | None = None,
    ) -> AsyncGenerator[Parsed]:
        """Generate, packet by packet. Leaving the loop ends the generation.

        `prompt` is text, or messages for the chat template. `sampling` is greedy by default; its own
        `max_tokens` counts where it is given. The model may call `tools`; the calls are in the packets.
        """
        options = sampling or Sampling(temperature=0.0)
        if options.max_tokens is None:
            options = msgspec.structs.replace(options, max_tokens=max_tokens)
        plain = isinstance(prompt, str)
        request = GenerateRequest(
            id=f"node-{secrets.token_hex(12)}",
            prompts=(prompt,) if isinstance(prompt, str) else (),
            add_special_tokens=plain,
            sampling=options,
            conversation=None if isinstance(prompt, str) else self.conversation(prompt, tools),
            tools=tools,
        )
        request = await self.rendered(request)
        parser = OutputParser(request.parsing, request.tools)
        running = await self.engine.generate(request)
        try:
            while True:
                delta = await running.next()
                current_request().count_other(delta.prompt_tokens, delta.tokens)
                yield parser.feed(delta)
                if delta.last:
                    return
        finally:
            running.abort_if_running()

    async def generate(
        self, prompt: str | Messages, *, max_tokens: int = 256, sampling: Sampling | None = None
    ) -> Generated:
        """Generate a whole answer; its first choice. Arguments are those of `stream`."""
        answer = Completion()
        async with aclosing(self.stream(prompt, max_tokens=max_tokens, sampling=sampling)) as packets:
            async for parsed in packets:
                answer.add(parsed)
        choice = answer.choices[0]
        return Generated(
            choice.content,
            choice.reasoning,
            choice.finish_reason,
            answer.prompt_tokens,
            answer.completion_tokens,
            tuple(choice.logprobs),
        )
