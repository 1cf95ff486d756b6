"""PrefixReplay: computes the prefixes that recent prompts shared again, after an engine has lost its cache.

Each is a request of one token that no client waits for. It is sent only while the engine has no client's
request, and none comes or waits for the load of another graph. It is aborted as soon as one does, so a
client waits for the end of a step at most. What it has computed until then stays in the cache.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from ovserve.engine.client.delta_stream import DeltaStream
from ovserve.engine.client.prefixes import LEAST_TOKENS, PromptRecord, SharedPrefix, common
from ovserve.engine.protocol.messages import Add
from ovserve.engine.protocol.specs import GenerationSpec, TextFacts, TextSpec, block_tokens
from ovserve.errors import EngineDead, OvserveError
from ovserve.llm.request import GREEDY_TEMPERATURE, GenerateRequest, Sampling

NAME = "warm prefix"  # of its requests, in reports
QUIET = 0.2  # seconds without a client's request before it begins: a client in a loop sends the next one
POLL = 0.05
STEP_BEGUN = 0.02  # seconds after an admission; more than the engine waits for other requests
GIVE_UP = 60.0  # seconds without quiet, after which its clients have filled the cache
INTERRUPTIONS = 20  # each may have cost a client the rest of a step

log = logging.getLogger(__name__)

Ids = tuple[int, ...]


class PrefixReplay:
    def __init__(
        self,
        spec: GenerationSpec,
        budget: int,
        *,
        begin: Callable[[GenerateRequest], DeltaStream],
        tokenize: Callable[[str, bool], Awaitable[Sequence[int]]],
        quiet: Callable[[], bool],
    ) -> None:
        """`budget`: tokens to compute after each start of the engine; 0: nothing is recorded.

        `begin` sends a request without a queue; `quiet` returns whether no client needs the engine.
        """
        self._spec, self._budget = spec, budget
        self._begin, self._tokenize, self._is_quiet = begin, tokenize, quiet
        self._enabled = bool(budget) and isinstance(spec, TextSpec) and spec.enable_prefix_caching
        self._facts = TextFacts()
        self._task: asyncio.Task[None] | None = None
        self._stream: DeltaStream | None = None
        self.record = PromptRecord()
        self._found: int | None = None  # tokens of the next prefix that were cached before any was sent
        self.tokens = 0  # computed since the start of the server

    @property
    def held(self) -> int:
        """Return the requests that the engine holds for it."""
        return 0 if self._stream is None else self._stream.held

    def answered(self, add: Add, name: str) -> None:
        """Record the prompt of a request that was answered to its end; others might end the engine."""
        if self._enabled and name != NAME and not add.images:
            self.record.add(add.prompt, special=add.add_special_tokens)

    def launched(self, facts: TextFacts) -> None:
        """Begin, because the cache of the engine is empty."""
        self._facts = facts
        self.record.renew()
        if self._task is not None:
            self._task.cancel()
        if len(self.record) > 1 and not facts.vision:
            self._task = asyncio.create_task(self._run(), name="replay of prefixes")

    def interrupt(self) -> None:
        """Make way for a client's request."""
        if (stream := self._stream) is not None:
            self._stream = None
            stream.abort_if_running()

    async def stop(self) -> None:
        """Stop until the next `launched`."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def rest(self) -> None:
        """Stop, and forget of the prompts what only one had: the engine is unloaded."""
        await self.stop()
        if self.record:
            await self.record.drop_unshared()

    # ---- after a start

    async def _run(self) -> None:
        before, self._found = self.tokens, None
        try:
            await self._quiet()
            prefixes = await self._prefixes()
            await self._make_room([ids for _, ids in prefixes])
            interruptions = 0
            for prefix, ids in prefixes:
                while not (self.record.cached(prefix) or await self._send(ids, 1)):
                    if (interruptions := interruptions + 1) > INTERRUPTIONS:
                        raise TimeoutError
                    await self._quiet()
                self._found = None
        except EngineDead as error:
            log.warning("the engine ended while it computed prefixes, which are forgotten: %s", error)
            self.record.clear()
        except (OvserveError, TimeoutError) as error:
            log.info("prefixes are not computed again: %s", error or "the engine is busy")
        if self.tokens > before:
            log.info("%d tokens of prefixes were computed again", self.tokens - before)

    async def _quiet(self) -> None:
        """Wait until no client has needed the engine for QUIET seconds. Raises TimeoutError."""
        async with asyncio.timeout(GIVE_UP):
            since = time.monotonic()
            while time.monotonic() - since < QUIET:
                await asyncio.sleep(POLL)
                if not self._is_quiet():
                    since = time.monotonic()

    async def _prefixes(self) -> list[tuple[SharedPrefix, Ids]]:
        """Return what to compute, in whole blocks of the cache, within the budget."""
        size, facts = block_tokens(self._spec.device), self._facts
        left = min(self._budget, facts.cache_tokens // 2 or self._budget)  # the rest is the clients'
        found: list[tuple[SharedPrefix, Ids]] = []
        for prefix in await self.record.shared():
            if left < LEAST_TOKENS:
                break
            if self.record.cached(prefix):
                continue
            prompt = prefix.prompt
            if isinstance(prompt, str):
                # The last token of a text that is cut may be another one than in the prompts.
                ids = tuple(await self._tokenize(prompt, prefix.special))[:-1]
            else:
                ids = prompt
            known = max((common(ids, other) for _, other in found), default=0)
            most = min(len(ids), known + left, (facts.max_length or len(ids) + 2) - 2)
            whole = most // size * size
            if whole - known >= size:
                found.append((prefix, ids[:whole]))
                left -= whole - known
        return found

    async def _make_room(self, prefixes: Sequence[Ids]) -> None:
        """Have a cache without a bound grow to hold all of them, and as much again for what it has.

        Such a cache has room for the requests that run at a time, so each prefix would take the place of the
        one before. One request as long as all of them is begun and aborted.
        """
        spec = self._spec
        if not isinstance(spec, TextSpec) or spec.cache_size or spec.num_kv_blocks or not prefixes:
            return
        all_ = tuple(id_ for ids in prefixes for id_ in ids)
        longest = (self._facts.max_length or 2 * len(all_)) - 1
        await self._send(all_[: longest // 2 + 1], len(all_), admission_only=True)

    async def _send(self, ids: Ids, max_tokens: int, *, admission_only: bool = False) -> bool:
        """Return whether it was computed; False: a client came, and it is to be sent again."""
        if not self._is_quiet():
            return False
        sampling = Sampling(max_tokens=max_tokens, temperature=GREEDY_TEMPERATURE, ignore_eos=True)
        request = GenerateRequest(NAME, (ids,), False, sampling, tells_admission=True)
        stream = self._stream = self._begin(request)
        try:
            while self._stream is stream:
                if not self._is_quiet():
                    return False
                try:
                    async with asyncio.timeout(POLL):
                        delta = await stream.next()
                except TimeoutError:
                    continue
                if delta.prompt_tokens and self._found is None:
                    self._found = delta.cached_tokens or 0
                if admission_only:
                    await asyncio.sleep(STEP_BEGUN)
                    return True
                if delta.last:
                    self.tokens += max(0, len(ids) - (self._found or 0))
                    return True
        except OvserveError:
            if self._stream is stream:
                raise
        finally:
            if self._stream is stream:
                self.interrupt()
        return False
