"""PromptCheck: rejects a request for what its prompt says, before a model sees it.

    @calculator("NoSecretsCalculator")
    class NoSecrets(PromptCheck):
        def objection(self, cc: Context, text: str) -> str:
            return "Keys are not for this model." if "BEGIN PRIVATE KEY" in text else ""

| port | type | |
|---|---|---|
| input `CONVERSATION` | `GenerateRequest` | from ConversationCalculator |
| output `CONVERSATION` | `GenerateRequest` | the same request |
| side packet `LLM_NODE_RESOURCES` | `LlmResources` | the model that answers |

A rejected request is a 400 with `code: content_filter`, and counts as the node's event `rejected`.

AnswerCheck: decides about a whole answer before a client gets any of it.

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

Observer: sees each request with its whole answer, and changes neither.

    @calculator("LengthLogCalculator")
    class LengthLog(Observer):
        def observe(self, cc: Context, exchange: Exchange) -> None:
            print(len(exchange.prompt), len(exchange.answer.choices[0].content), exchange.seconds)

| port | type | |
|---|---|---|
| input `GENERATE` | `GenerateRequest` | after RequestParser |
| input `PARSED` | `Parsed` | from OutputParser |
| output `PARSED` | `Parsed` | the same packets |

`observe` is called once per request, in their order, when the answer has ended; no client waits for it. It is
also called for an answer that broke off: the client left, or a node failed. A plain method runs on a thread,
because what it does (a database, a file) usually blocks; a coroutine runs on the event loop. What it raises
is in the log, counts as the node's event `failed`, and does not reach the client. Where 1,000 answers wait
for a slow `observe`, further ones count as `dropped`.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable

import msgspec

from ovserve.calculators.library.messages import prompt_text
from ovserve.calculators.library.text_filter import CONTENT_FILTER
from ovserve.errors import ContentFiltered, described
from ovserve.graph import Calculator, Context, Input, Output, SidePacket
from ovserve.graph.graph import on_thread
from ovserve.graph.options import awaited, must_override
from ovserve.kinds.text.resource import LlmResources
from ovserve.llm.output import Completion, Content, Parsed
from ovserve.llm.request import GenerateRequest

log = logging.getLogger(__name__)


class PromptCheck(Calculator):
    """Base of checks. Override `objection`."""

    runs_on = "loop"

    given = Input("CONVERSATION", GenerateRequest)
    passed = Output("CONVERSATION", GenerateRequest)
    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)

    @must_override
    def objection(self, cc: Context, text: str) -> str | Awaitable[str]:
        """Return why the request is rejected, for the client; "" if it is not. `text` is all messages."""
        raise NotImplementedError

    async def process(self, cc: Context) -> None:
        request = cc[self.given]
        if request is None:
            return
        if why := await awaited(self.objection(cc, await prompt_text(cc[self.llm], request))):
            cc.count("rejected")
            param = request.conversation.param if request.conversation is not None else "prompt"
            raise ContentFiltered(why, param=param)
        cc.send(self.passed, request)


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


class Exchange(msgspec.Struct, frozen=True):
    """One request and its answer. Times are in seconds since the request reached the node."""

    request: GenerateRequest
    answer: Completion  # what was sent of it, if it broke off
    complete: bool
    first_token_seconds: float | None  # None: no text came
    seconds: float

    @property
    def prompt(self) -> str:
        """The text that the model was given, by its chat template; "" for a prompt of token ids."""
        return "\n".join([prompt for prompt in self.request.prompts if isinstance(prompt, str)])


class Observer(Calculator):
    """Base of nodes that log, measure or audit. Override `observe`."""

    runs_on = "loop"
    immediate = True  # the request comes before the first packet, and the clock starts with it

    request = Input("GENERATE", GenerateRequest)
    parsed = Input("PARSED", Parsed)
    passed = Output("PARSED", Parsed)

    @must_override
    def observe(self, cc: Context, exchange: Exchange) -> Awaitable[None] | None:
        """Look at a request whose answer has ended."""
        raise NotImplementedError

    def __init__(self) -> None:
        self._request: GenerateRequest | None = None
        self._answer = Completion()
        self._began = 0.0
        self._first_token_seconds: float | None = None
        self._complete = False

    def process(self, cc: Context) -> None:
        request, parsed = cc[self.request], cc[self.parsed]
        if request is not None:
            self._request, self._began = request, time.monotonic()
        if parsed is None:
            return
        if parsed.parts and self._first_token_seconds is None:
            self._first_token_seconds = time.monotonic() - self._began
        self._answer.add(parsed)
        self._complete = parsed.last
        cc.send(self.passed, parsed)

    def close(self, cc: Context) -> None:
        if self._request is None:
            return
        seconds = time.monotonic() - self._began
        exchange = Exchange(self._request, self._answer, self._complete, self._first_token_seconds, seconds)
        if not cc.follow_up(lambda: self._observe(cc, exchange)):
            cc.count("dropped")
            log.warning("node %r: too many answers wait for observe(), so one is not observed", cc.node.name)

    async def _observe(self, cc: Context, exchange: Exchange) -> None:
        try:
            if inspect.iscoroutinefunction(self.observe):
                await awaited(self.observe(cc, exchange))
            else:
                await on_thread(lambda _: self.observe(cc, exchange), None, "observe")
        except Exception as error:  # the operator's code: the answer has been sent, and stands
            cc.count("failed")
            log.warning("node %r: observe() failed: %s", cc.node.name, described(error), exc_info=error)
