"""Validate grammars before they go to the engine, in a process that may die of them.

A grammar that does not compile raises inside the engine's step and fails all running
requests with it, and one that compiles for a minute delays them. So each is tried first in a child process
(`process.py`). Only one that is cheap by its form (`llm/grammar/cost.py`) goes to the engine directly.

A trial has two stages. In the first a grammar has QUICK seconds of CPU time, and nearly all need a tenth of
that. A slower one is tried again in a second process of lower priority, with the whole time. So grammars
that compile forever delay each other, and no other ones.

All verdicts are kept. One about CPU time is kept for a minute only: what takes 10 s now may take 5 s an hour
later. But a client that comes back at once must not cost another 10 s. Running out of wall time is not a
verdict. A request for a grammar on trial shares that trial. A request that has waited `wait_seconds` gets a
503 with `Retry-After`; the trial goes on, and its verdict is there when the client comes back. A trial that
all clients have left before its turn is dropped: 30 such clients delayed the next grammar by 40 s.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass

from ovserve.engine.client.grammar_process import GrammarProcess, Verdict
from ovserve.engine.protocol.specs import Spec
from ovserve.errors import InvalidArgument, Unavailable
from ovserve.llm.grammar.constraint import Constraint, digest
from ovserve.llm.grammar.cost import is_cheap

NICENESS = 10  # of the process for slow grammars


@dataclass(frozen=True)
class GrammarLimits:
    seconds: float = 10.0  # of CPU time for one grammar
    quick_seconds: float = 1.0  # of these, in the first stage
    wait_seconds: float = 60.0  # of wall time that one request waits for a verdict
    stuck_seconds: float = 10.0  # without any CPU time; then the process is replaced
    waiting: int = 64  # grammars that wait for their turn
    slow_waiting: int = 8  # how many of them may wait for the second stage
    kept: int = 2048  # verdicts
    kept_seconds: float = 60.0  # those about CPU time
    trials_per_process: int = 500  # then another process: the compiler never frees memory
    # What the engine keeps compiled; then it drops everything. Grammars use some 400 times their text: ten
    # tools 1 MB, a schema of six strings 60 KB, with a vocabulary of 49152 (measured; dropping freed it all).
    compiled: int = 256
    compiled_bytes: int = 512 * 1024  # of text
    compiled_memory: int = 512 << 20  # bytes, for grammars that need much more than their text suggests


class GrammarProver:
    def __init__(self, spec: Spec, *, ready_timeout: float, limits: GrammarLimits | None = None) -> None:
        self._limits = limits = limits or GrammarLimits()

        def process(niceness: int) -> GrammarProcess:
            return GrammarProcess(
                spec,
                ready_timeout=ready_timeout,
                stuck_seconds=limits.stuck_seconds,
                trials=limits.trials_per_process,
                niceness=niceness,
            )

        self._quick, self._slow = process(0), process(NICENESS)
        self._quick_turn, self._slow_turn = asyncio.Lock(), asyncio.Lock()
        self._in_slow = 0
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()  # by digest
        self._slow_until: dict[bytes, float] = {}  # of those verdicts that are about CPU time
        self._trials: dict[bytes, asyncio.Task[Verdict]] = {}
        self._wanted: Counter[bytes] = Counter()  # requests for each trial whose clients have not left
        self._stopped = False

    @property
    def pid(self) -> int:
        """PID of the process for quick grammars; 0 while there is none."""
        return self._quick.pid

    @property
    def compiles(self) -> int:
        """Return how many trials were run."""
        return self._quick.compiles + self._slow.compiles

    async def validate(self, constraint: Constraint, *, parallel: bool = False) -> int | None:
        """Return the bytes that a grammar uses when compiled; at once if it was tried before.

        None: it is cheap, and the engine compiles it in parallel to its steps, so it was not tried. Raises
        InvalidArgument with the compiler's message, or for a grammar that needs too much CPU time or memory.
        Raises Unavailable when too many wait, the time to wait is over, or no process can be started.
        """
        if parallel and is_cheap(constraint.format):
            return None
        key = digest(constraint.format)
        verdict = self._known(key)
        if verdict is not None:
            self._verdicts.move_to_end(key)
        else:
            trial = self._trial(key, constraint)
            self._wanted[key] += 1
            try:
                async with asyncio.timeout(self._limits.wait_seconds):
                    verdict = await asyncio.shield(trial)  # other requests may wait for it too
            except asyncio.CancelledError:
                if self._trials.get(key) is trial:
                    self._wanted[key] -= 1
                raise
            except TimeoutError:
                raise Unavailable(
                    f"the grammar could not be compiled within {self._limits.wait_seconds:g} s, "
                    "because this machine is busy; try again",
                    retry_after=5.0,
                ) from None
        if verdict.fault:
            raise InvalidArgument(f"{constraint.param}: {verdict.fault}", param=constraint.param)
        return verdict.memory

    def _trial(self, key: bytes, constraint: Constraint) -> asyncio.Task[Verdict]:
        task = self._trials.get(key)
        if task is None:
            if self._stopped:
                raise Unavailable("the engine is stopping")
            if len(self._trials) >= self._limits.waiting:
                raise Unavailable("too many new grammars wait to be compiled", retry_after=1.0)
            task = asyncio.create_task(self._run(key, constraint), name="grammar trial")
            self._trials[key] = task
            task.add_done_callback(_retrieve)
        return task

    def _ended(self, key: bytes) -> None:
        del self._trials[key], self._wanted[key]

    async def _run(self, key: bytes, constraint: Constraint) -> Verdict:
        seconds, quick = self._limits.seconds, self._limits.quick_seconds
        try:
            async with self._quick_turn:
                self._check_wanted(key)
                verdict = await self._quick.validate(constraint, min(seconds, quick))
            if verdict.over_time and quick < seconds:
                verdict = await self._run_slow(key, constraint)
            self._keep(key, verdict)
            return verdict
        finally:
            self._ended(key)  # at once: a request that comes now must not join a trial that was dropped

    def _check_wanted(self, key: bytes) -> None:
        if not self._wanted[key]:
            raise Unavailable("no client waits for this grammar")

    def _known(self, key: bytes) -> Verdict | None:
        if self._slow_until.get(key, math.inf) < time.monotonic():
            del self._slow_until[key], self._verdicts[key]
        return self._verdicts.get(key)

    def _keep(self, key: bytes, verdict: Verdict) -> None:
        self._verdicts[key] = verdict
        if not verdict.kept:
            self._slow_until[key] = time.monotonic() + self._limits.kept_seconds
        if len(self._verdicts) > self._limits.kept:
            oldest, _ = self._verdicts.popitem(last=False)
            self._slow_until.pop(oldest, None)

    async def _run_slow(self, key: bytes, constraint: Constraint) -> Verdict:
        if self._in_slow >= self._limits.slow_waiting:
            raise Unavailable("too many slow grammars wait to be compiled", retry_after=self._limits.seconds)
        self._in_slow += 1
        try:
            async with self._slow_turn:
                try:
                    self._check_wanted(key)
                    return await self._slow.validate(constraint, self._limits.seconds)
                finally:
                    if self._in_slow == 1:
                        await self._slow.end()  # such grammars are rare, and it holds 150 MB
        finally:
            self._in_slow -= 1

    async def stop(self) -> None:
        """Stop; running trials end with Unavailable."""
        self._stopped = True
        await asyncio.gather(self._quick.stop(), self._slow.stop())
        await asyncio.gather(*self._trials.values(), return_exceptions=True)
        await asyncio.gather(self._quick.end(), self._slow.end())

    async def rest(self) -> None:
        """End the processes, if they have no trial, until the next one."""
        if not self._trials:
            await asyncio.gather(self._quick.end(), self._slow.end())


def _retrieve(task: asyncio.Task[Verdict]) -> None:
    """Mark a trial's exception as seen: no request may be left to see it."""
    if not task.cancelled():
        task.exception()
