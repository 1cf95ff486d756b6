"""TextClient: the server's handle on an engine that generates text.

A calculator calls `stream = await client.generate(request)`, then `await stream.next()` until a
delta has a finish_reason, and `stream.abort_if_running()` on the way out. The engine runs `tokenize` and
`detokenize` between two steps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ovserve.engine.client.client import EngineClient
from ovserve.engine.client.grammars import CompiledGrammars, GrammarProver
from ovserve.engine.client.hosting.host import ModelProcess
from ovserve.engine.client.long_texts import Texts
from ovserve.engine.client.process import EngineMessage
from ovserve.engine.client.requests import DeltaStream, Requests
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.protocol.frames import UNSENDABLE
from ovserve.engine.protocol.messages import (
    ENGINE_FAILED,
    Accepted,
    Failed,
    Steps,
    Usage,
)
from ovserve.engine.protocol.specs import GenerationSpec, TextFacts
from ovserve.errors import InvalidArgument, OvserveError
from ovserve.llm.decoding import refuse_combination
from ovserve.llm.grammar.constraint import Constraint
from ovserve.llm.request import GenerateRequest
from ovserve.telemetry.requests import RequestMetrics


class TextClient(EngineClient[GenerationSpec, TextFacts]):
    _requests: Requests

    def __init__(self, spec: GenerationSpec, settings: EngineSettings | None = None) -> None:
        super().__init__(spec, settings)
        self._requests = Requests(self._send, self._notify_room)
        self._beside: TextClient | None = None
        self._compiled = CompiledGrammars(self._settings.grammars, self._pending)
        self.grammars = GrammarProver(
            spec, ready_timeout=self._settings.ready_timeout, limits=self._settings.grammars
        )
        self.texts = Texts(
            spec,
            self._pending,
            self._ready_process,
            lambda: self.facts,
            self._settings.ready_timeout,
        )
        self._helpers = (self.grammars, self.texts.process)

    def rest_beside(self, other: TextClient) -> None:
        """Begin without a process; `other`, with the same tokenizer, answers for it meanwhile."""
        self._beside = other
        self.rest(other.facts)

    def _tokenizer(self) -> Texts:
        other = self._beside
        asks_other = self.state.name == "unloaded" and other is not None and other.state.name == "ready"
        return other.texts if asks_other and other is not None else self.texts

    @property
    def prefilling(self) -> bool:
        """Return whether it holds a request whose prompt is not read yet."""
        return self._requests.prefill_tokens() > 0

    async def generate(
        self,
        request: GenerateRequest,
        meter: RequestMetrics | None = None,
        arrived: float | None = None,
        *,
        repeated: bool = False,
        stall_timeout: float | None = None,
    ) -> DeltaStream:
        """Start a request. Its usage is counted in `meter`, from `arrived` on (`time.monotonic()`; now if not
        given).

        `repeated`: its first engine has ended, and this is its last chance.
        `stall_timeout` replaces the policy's as long as the engine holds the request.
        """
        meter = meter or RequestMetrics()
        arrived = time.monotonic() if arrived is None else arrived
        if (constraint := request.sampling.constraint) is not None:
            refuse_combination(self.spec.decoding, request.sampling)
        ids = await self.texts.ids_of(request)
        await self._ready_for(constraint)
        last = self.expected <= len(self._requests) + 1
        try:
            ongoing = self._requests.begin(
                request, meter, arrived, repeated=repeated, stall_timeout=stall_timeout, last=last, ids=ids
            )
        except UNSENDABLE as error:
            raise InvalidArgument(f"the request cannot be sent to the engine: {error}") from error
        return DeltaStream(self._requests, ongoing)

    async def tokenize(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Return token ids. Raises EngineDead when the process ends meanwhile, InvalidArgument for invalid
        text."""
        return await self._tokenizer().tokenize(texts, add_special_tokens)

    async def detokenize(
        self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool = False
    ) -> list[str]:
        """Return texts. Raises as `tokenize` does; InvalidArgument for ids outside of the vocabulary."""
        return await self._tokenizer().detokenize(rows, skip_special_tokens)

    async def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token, of parts of characters their bytes; raises as `detokenize`."""
        return await self._tokenizer().detokenize([[id_] for id_ in ids], False, escaped=True)

    async def _ready_for(self, constraint: Constraint | None) -> ModelProcess:
        """Return a process that is ready, and has compiled the constraint if there is one."""
        while True:
            process = await self._ready_process()
            if constraint is None or constraint in self._compiled:
                return process
            memory = await self.grammars.validate(constraint, parallel=self.facts.compiles_grammars)
            if process is self._process and self.state.name == "ready":
                await self._compiled.add(process.send, constraint, memory)

    # ---- what EngineClient requires of a kind of engine

    def _on_kind_message(self, message: EngineMessage) -> tuple[bool, Usage | None]:
        if isinstance(message, Steps):
            self._requests.on_tokens(message.items)
            if message.usage is not None and message.usage.to_prefill:
                self._requests.on_prefill(message.usage.to_prefill)
            return bool(message.items), message.usage
        if isinstance(message, Accepted):
            self._requests.accepted(message)
        elif not isinstance(message, Failed) or message.id < 0:
            self._pending.on_message(message)
        elif message.kind != ENGINE_FAILED:
            self._requests.failed(message)
        else:
            self._failed_in_step(message.message)
        return True, None

    async def _requests_resume(self, process: ModelProcess) -> None:
        for request in self._requests.waiting():
            try:
                if request.constraint is not None:
                    await self._compiled.add(process.send, request.constraint)
                self._requests.resend(request)
            except OvserveError as error:
                self._requests.end(request, error)

    def _on_launched(self) -> None:
        self._compiled.renew()

    def _on_death(self, process: ModelProcess) -> None:
        self._requests.suspects.ended(by_itself=process.ended_by_itself)
