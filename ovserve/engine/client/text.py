"""TextClient: the server's handle on an engine that generates text.

A calculator calls `stream = await client.generate(request)`, then `await stream.next()` until a delta has a
finish_reason, and `stream.abort_if_running()` on the way out. The engine runs `tokenize` and `detokenize` of
short texts between two steps, another process those of long ones: the tokenizer holds the engine's global
lock, so a long text would stop all streams while it runs. Short ones take a millisecond or two, and the
engine tokenizes many prompts in one call. A call of the process that takes too long is ended with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from ovserve.engine.client.client import EngineClient
from ovserve.engine.client.grammars import CompiledGrammars, GrammarProver, HelperEnded, HelperProcess
from ovserve.engine.client.host import ModelProcess
from ovserve.engine.client.mailbox import PendingCalls, Question
from ovserve.engine.client.process import EngineMessage
from ovserve.engine.client.requests import DeltaStream, Requests
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.protocol.admission import admit
from ovserve.engine.protocol.frames import UNSENDABLE, unsendable
from ovserve.engine.protocol.messages import (
    ENGINE_FAILED,
    Accepted,
    Detokenize,
    Failed,
    Steps,
    Tokenize,
    Usage,
)
from ovserve.engine.protocol.specs import GenerationSpec, Spec, TextFacts, TokenizerSpec
from ovserve.errors import ContextLengthExceeded, InvalidArgument, OvserveError, Unavailable
from ovserve.llm.decoding import refuse_combination
from ovserve.llm.grammar.constraint import Constraint
from ovserve.llm.request import GenerateRequest, Prompt
from ovserve.telemetry.metrics import RequestMetrics

log = logging.getLogger(__name__)

LONG_TEXT = 32768  # characters in all texts of a request; some 2 ms
LONG_IDS = 8192  # the same for ids to detokenize
CALL_SECONDS = 60.0
MAX_CALLS = 64  # that wait or run
ID_BYTES = 4  # bytes of a packed id


def is_long(prompts: Iterable[str | tuple[int, ...]]) -> bool:
    """Return whether the prompts are too long to tokenize between two steps."""
    size = 0
    for prompt in prompts:
        size += len(prompt) if isinstance(prompt, str) else 0
    return size > LONG_TEXT


class Texts:
    def __init__(
        self,
        spec: Spec,
        pending: PendingCalls,
        engine: Callable[[], Awaitable[ModelProcess]],
        facts: Callable[[], TextFacts],
        ready_timeout: float,
    ) -> None:
        """`pending` holds the engine's calls, which `engine` waits for."""
        self._pending, self._engine, self._facts = pending, engine, facts
        self._counts_words = spec.scripted  # two such processes share no ids
        self._calls = 0
        self.process = HelperProcess(
            lambda: TokenizerSpec(spec.model_path, spec.device, spec.properties, facts=facts()),
            "tokenises",
            "long texts cannot be tokenised",
            ready_timeout=ready_timeout,
        )

    async def ids_of(self, request: GenerateRequest) -> list[bytes]:
        """Return the ids of its prompts, if those are too long to be tokenized between two steps.

        Raises ContextLengthExceeded, at once for a prompt that cannot fit by its size.
        """
        prompts = request.prompts
        if request.images or not is_long(prompts):  # images need the text
            return []
        facts = self._facts()
        check_sizes(prompts, facts)
        texts = tuple(prompt for prompt in prompts if isinstance(prompt, str))
        special = request.add_special_tokens
        packed: list[bytes] = await self._call_process(
            partial(Tokenize, texts=texts, add_special_tokens=special, packed=True)
        )
        for ids in packed:
            if facts.max_length is not None and len(ids) >= ID_BYTES * facts.max_length:
                admit(len(ids) // ID_BYTES, facts.max_length, request.sampling)  # raises
        encoded = iter(packed)
        return [next(encoded) if isinstance(prompt, str) else b"" for prompt in prompts]

    async def tokenize(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        call = self._call_process if is_long(texts) else self._call_engine
        make = partial(Tokenize, texts=tuple(texts), add_special_tokens=add_special_tokens)
        ids: list[list[int]] = await call(make)
        return ids

    async def detokenize(
        self, rows: Sequence[Sequence[int]], skip_special_tokens: bool, escaped: bool = False
    ) -> list[str]:
        long = sum(map(len, rows)) > LONG_IDS and not self._counts_words
        call = self._call_process if long else self._call_engine
        ids = tuple(map(tuple, rows))
        texts: list[str] = await call(
            partial(Detokenize, ids=ids, skip_special_tokens=skip_special_tokens, escaped=escaped)
        )
        return texts

    async def _call_engine(self, make: Callable[[int], Question]) -> Any:
        process = await self._engine()
        return await self._pending.call(process.send, make)

    async def _call_process(self, make: Callable[[int], Question]) -> Any:
        """Raises InvalidArgument for a text that cannot be tokenized or takes too long.

        Raises Unavailable when too many calls wait, or no process can be started.
        """
        if self._calls >= MAX_CALLS:
            raise Unavailable(f"{MAX_CALLS} long texts wait to be tokenised already", retry_after=1.0)
        self._calls += 1
        try:
            async with self.process.turn:
                try:
                    return await self.process.call(make, seconds=CALL_SECONDS)
                except HelperEnded:  # perhaps it was killed from outside; try once in a new one
                    return await self.process.call(make, seconds=CALL_SECONDS)
        except HelperEnded as error:
            raise Unavailable(error.message, retry_after=1.0) from error
        except TimeoutError:
            log.warning("a text took more than %g s to tokenise: rejected", CALL_SECONDS)
            raise InvalidArgument(f"the text takes more than {CALL_SECONDS:g} s to tokenise") from None
        finally:
            self._calls -= 1


class TextClient(EngineClient[GenerationSpec, TextFacts]):
    _requests: Requests

    def __init__(self, spec: GenerationSpec, settings: EngineSettings | None = None) -> None:
        super().__init__(spec, settings)
        self._requests = Requests(self._send, self.on_room)
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
        refuse_combination(self.spec.decoding, request.sampling)  # a busy engine says it seconds later
        ids = await self.texts.ids_of(request)
        await self._ready_for(request.sampling.constraint)
        last = self.expected <= len(self._requests) + 1
        try:
            return self._requests.begin(
                request, meter, arrived, repeated=repeated, stall_timeout=stall_timeout, last=last, ids=ids
            )
        except UNSENDABLE as error:
            raise unsendable("the request", error) from error

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


MAX_CHARACTER_BYTES = 4  # at most, per character


def check_sizes(prompts: Sequence[Prompt], facts: TextFacts) -> None:
    """Reject a prompt that cannot fit by its size alone, before it is tokenized: with ContextLengthExceeded.

    A token of a byte-level vocabulary stands for at most `longest_token` bytes, so a text of more than that
    times the context cannot fit. Tokenizing one of several megabytes only to report the excess would take
    seconds.
    """
    if facts.max_length is None:
        return
    for prompt in prompts:
        if isinstance(prompt, str):
            _check_text(prompt, facts.max_length, facts.longest_token)
        elif len(prompt) >= facts.max_length:
            raise _uncounted(
                facts.max_length,
                f"The prompt has {len(prompt)} tokens: shorten it by at least "
                f"{len(prompt) - facts.max_length + 1}.",
            )


def _check_text(text: str, max_length: int, longest: int) -> None:
    most = (max_length - 1) * longest
    if not longest or len(text) * MAX_CHARACTER_BYTES <= most:
        return
    size = len(text) if len(text) > most else len(text.encode("utf-8", "surrogatepass"))
    if size <= most:
        return
    least = -(-size // longest)
    raise _uncounted(
        max_length,
        f"The prompt has at least {size} bytes, and no token of this model stands for more than {longest}, "
        f"so it has at least {least} tokens: shorten it by at least {least - max_length + 1}.",
    )


def _uncounted(max_length: int, why: str) -> ContextLengthExceeded:
    error = ContextLengthExceeded(
        f"This model's maximum context length is {max_length} tokens, and one of them must be left for the "
        f"answer. {why}",
        param="prompt",
    )
    error.counted = False
    return error
