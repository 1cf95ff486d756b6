"""Observer: sees each request with its whole answer, and changes neither.

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

from ovserve.errors import described
from ovserve.graph import Calculator, Context, Input, Output
from ovserve.graph.loading import on_thread
from ovserve.graph.overrides import awaited, must_override
from ovserve.llm.output import Completion, Parsed
from ovserve.llm.request import GenerateRequest

log = logging.getLogger(__name__)


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
