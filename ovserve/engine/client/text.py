"""TextClient: the server's handle on an engine that generates text.

Used by the executor calculator: `stream = await client.generate(request)`, then `await stream.next()` until a
delta has a finish_reason, and `stream.abort_if_running()` on the way out. `tokenize` and `detokenize` ask the
engine between two steps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ovserve.engine.client.calls import UNSENDABLE, PendingCalls
from ovserve.engine.client.client import EngineClient
from ovserve.engine.client.grammars.compiled import CompiledGrammars
from ovserve.engine.client.grammars.prover import GrammarProver
from ovserve.engine.client.prewarm import PrewarmedProcess
from ovserve.engine.client.process import EngineMessage, EngineProcess
from ovserve.engine.client.requests import DeltaStream, Requests
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.client.state import EngineStats
from ovserve.engine.client.tokenizer.texts import Texts
from ovserve.engine.protocol.messages import (
    ENGINE_FAILED,
    Accepted,
    Failed,
    Steps,
    Usage,
)
from ovserve.engine.protocol.specs import GenerationSpec, TextFacts
from ovserve.errors import EngineDead, InvalidArgument, OvserveError
from ovserve.llm.decoding import refuse_combination
from ovserve.llm.grammar.constraint import Constraint
from ovserve.llm.request import GenerateRequest
from ovserve.telemetry.requests import RequestMetrics


class TextClient(EngineClient[GenerationSpec, TextFacts]):
    def __init__(self, spec: GenerationSpec, settings: EngineSettings | None = None) -> None:
        super().__init__(spec, settings)
        self._requests = Requests(self._send, self._notify_room)
        self._questions = PendingCalls()
        self._compiled = CompiledGrammars(self._settings.grammars)
        self.grammars = GrammarProver(
            spec, ready_timeout=self._settings.ready_timeout, limits=self._settings.grammars
        )
        self.texts = Texts(
            spec,
            self._questions,
            self._ready_process,
            lambda: self.facts,
            self._settings.ready_timeout,
        )

    @classmethod
    async def start(
        cls,
        spec: GenerationSpec,
        settings: EngineSettings | None = None,
        prewarmed: PrewarmedProcess | None = None,
    ) -> TextClient:
        """Ready when it returns. LoadError when the first engine does not load."""
        client = cls(spec, settings)
        await client.launch(prewarmed)
        return client

    @property
    def reading(self) -> bool:
        """It holds a request whose prompt it has not read."""
        return self._requests.unread_tokens() > 0

    def stats(self) -> EngineStats:
        return self._requests.stats(restarts=self._restarts, stalls=self._stalls)

    async def generate(
        self,
        request: GenerateRequest,
        meter: RequestMetrics | None = None,
        arrived: float | None = None,
        *,
        repeated: bool = False,
        stall_timeout: float | None = None,
    ) -> DeltaStream:
        """What it takes is counted in `meter`, from `arrived` on (`time.monotonic()`; now if not given).
        `repeated`: an engine has ended under it before, and this is its second and last chance.
        `stall_timeout`: instead of the policy's, as long as the engine holds it."""
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
        """Raises EngineDead when the process ends under it, InvalidArgument for what is no text."""
        return await self.texts.tokenize(texts, add_special_tokens)

    async def detokenize(
        self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool = False
    ) -> list[str]:
        """Raises as `tokenize`; InvalidArgument for ids outside of the vocabulary."""
        return await self.texts.detokenize(rows, skip_special_tokens)

    async def _ready_for(self, constraint: Constraint | None) -> EngineProcess:
        """A process that is ready, and has compiled the constraint if there is one."""
        while True:
            process = await self._ready_process()
            if constraint is None or constraint in self._compiled:
                return process
            memory = await self.grammars.prove(constraint, beside=self.facts.compiles_grammars)
            if process is self._process and self.state.name == "ready":
                await self._compiled.add(process.send, self._questions, constraint, memory)

    # ---- what EngineClient asks of a kind

    def _holds(self) -> int:
        return len(self._requests)

    def _questions_open(self) -> int:
        return len(self._questions)

    def _on_kind_message(self, message: EngineMessage) -> tuple[bool, Usage | None]:
        if isinstance(message, Steps):
            self._requests.on_tokens(message.items)
            return bool(message.items), message.usage
        if isinstance(message, Accepted):
            self._requests.accepted(message)
        elif not isinstance(message, Failed):
            self._questions.word(message)
        elif message.id < 0:
            self._questions.refuse(message)
        elif message.kind != ENGINE_FAILED:
            self._requests.failed(message)
        else:
            self._failed_in_step(message.message)
        return True, None

    def _requests_lost(self, reason: str) -> None:
        self._questions.fail_all(EngineDead(reason, retry_after=1.0))
        self._requests.lost(reason)

    def _requests_end(self, error: OvserveError, *, waiting_only: bool = False) -> None:
        if waiting_only:
            self._requests.end_waiting(error)
            return
        self._questions.fail_all(error)
        self._requests.end_all(error)

    async def _requests_resume(self, process: EngineProcess) -> None:
        for request in self._requests.waiting():
            try:
                if request.constraint is not None:
                    await self._compiled.add(process.send, self._questions, request.constraint)
                self._requests.resend(request)
            except OvserveError as error:
                self._requests.end(request, error)

    def _on_launched(self) -> None:
        self._compiled.renew()

    def _on_death(self, process: EngineProcess) -> None:
        self._requests.suspects.ended(by_itself=process.ended_by_itself)

    def _patience(self, default: float) -> float:
        return self._requests.patience(default)

    def _unread_tokens(self) -> int:
        return self._requests.unread_tokens()

    def _report(self) -> list[str]:
        return self._requests.report()

    async def _stop_helpers(self) -> None:
        await self.grammars.stop()
        await self.texts.stop()
