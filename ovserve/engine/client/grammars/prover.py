"""Which grammars may go to the engine: those that a process which may die of it has compiled.

Used by `client.py`. A grammar that does not compile raises inside the engine's step and takes all running
requests with it, and one that compiles for a minute holds them up. So each is tried first in a child process
(`grammar_process.py`). Only one that is cheap by its form (`llm/grammar/cost.py`) goes to the engine at once.

A trial has two stages. In the first a grammar has QUICK seconds of CPU time, and nearly all need a tenth of
that. What takes longer is tried again in a second process of lower priority, with the whole time. So grammars
that compile for ever delay each other, and no other ones.

Verdicts are kept, the good and the bad, but never one about time: what takes 10 s now may take 5 s an hour
later. Who asks while a trial runs shares it. A request that has waited `wait_seconds` gets a 503 with
`Retry-After`; the trial goes on, and its verdict is there when the client comes back.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from ovserve.engine.client.grammars.process import GrammarProcess, Verdict
from ovserve.engine.protocol.specs import Spec
from ovserve.errors import InvalidArgument, Unavailable
from ovserve.llm.grammar.constraint import Constraint, digest
from ovserve.llm.grammar.cost import is_cheap

NICENESS = 10  # of the process for slow grammars


@dataclass(frozen=True)
class GrammarLimits:
    seconds: float = 10.0  # of CPU time for one grammar
    quick_seconds: float = 1.0  # of them in the first stage
    wait_seconds: float = 60.0  # of wall time that one request waits for a verdict
    stuck_seconds: float = 10.0  # without any CPU time; then the process is replaced
    waiting: int = 64  # grammars that wait for their turn
    slow_waiting: int = 8  # those of them that wait for the second stage
    kept: int = 2048  # verdicts
    proofs_per_process: int = 500  # then another: the compiler forgets nothing
    # What the engine keeps compiled; then it drops all. They take some 400 times their text: one of ten tools
    # 1 MB, a schema of six strings 60 KB, with a vocabulary of 49152 (measured; dropping all gave it back).
    compiled: int = 256
    compiled_bytes: int = 512 * 1024  # of text
    compiled_memory: int = 512 << 20  # bytes, for those that took much more than their text lets expect


class GrammarProver:
    def __init__(self, spec: Spec, *, ready_timeout: float, limits: GrammarLimits | None = None) -> None:
        self._limits = limits = limits or GrammarLimits()

        def process(niceness: int) -> GrammarProcess:
            return GrammarProcess(
                spec,
                ready_timeout=ready_timeout,
                stuck_seconds=limits.stuck_seconds,
                trials=limits.proofs_per_process,
                niceness=niceness,
            )

        self._quick, self._slow = process(0), process(NICENESS)
        self._quick_turn, self._slow_turn = asyncio.Lock(), asyncio.Lock()
        self._in_slow = 0
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()  # by digest
        self._proofs: dict[bytes, asyncio.Task[Verdict]] = {}
        self._stopped = False

    @property
    def pid(self) -> int:
        """PID of the process for quick grammars; 0 while there is none."""
        return self._quick.pid

    @property
    def slow_pid(self) -> int:
        """PID of the process for slow grammars; 0 while there is none."""
        return self._slow.pid

    @property
    def compiles(self) -> int:
        """Trials that were run."""
        return self._quick.compiles + self._slow.compiles

    async def prove(self, constraint: Constraint, *, beside: bool = False) -> int | None:
        """Return the bytes that it takes when compiled; at once for a grammar that was tried before.

        None: it is cheap, and the engine compiles it `beside` its steps, so it was not tried.
        Raises InvalidArgument with the compiler's words, or for one that takes too much CPU time or memory.
        Raises Unavailable when too many wait, the time to wait is over, or no process can be started."""
        if beside and is_cheap(constraint.format):
            return None
        key = digest(constraint.format)
        verdict = self._verdicts.get(key)
        if verdict is not None:
            self._verdicts.move_to_end(key)
        else:
            proof = self._proof(key, constraint)
            try:
                async with asyncio.timeout(self._limits.wait_seconds):
                    verdict = await asyncio.shield(proof)  # others may wait for it too
            except TimeoutError:
                raise Unavailable(
                    f"the grammar could not be compiled within {self._limits.wait_seconds:g} s, "
                    "because this machine is busy; try again",
                    retry_after=5.0,
                ) from None
        if verdict.fault:
            raise InvalidArgument(f"{constraint.param}: {verdict.fault}", param=constraint.param)
        return verdict.memory

    def _proof(self, key: bytes, constraint: Constraint) -> asyncio.Task[Verdict]:
        task = self._proofs.get(key)
        if task is None:
            if self._stopped:
                raise Unavailable("the engine is stopping")
            if len(self._proofs) >= self._limits.waiting:
                raise Unavailable("too many new grammars wait to be compiled", retry_after=1.0)
            task = asyncio.create_task(self._run(key, constraint), name="grammar proof")
            self._proofs[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))
        return task

    def _ended(self, key: bytes, task: asyncio.Task[Verdict]) -> None:
        del self._proofs[key]
        if not task.cancelled():
            task.exception()  # looked at: whoever asked may be gone

    async def _run(self, key: bytes, constraint: Constraint) -> Verdict:
        seconds, quick = self._limits.seconds, self._limits.quick_seconds
        async with self._quick_turn:
            verdict = await self._quick.validate(constraint, min(seconds, quick))
        if verdict.over_time and quick < seconds:
            verdict = await self._run_slow(constraint)
        if verdict.kept:
            self._verdicts[key] = verdict
            if len(self._verdicts) > self._limits.kept:
                self._verdicts.popitem(last=False)
        return verdict

    async def _run_slow(self, constraint: Constraint) -> Verdict:
        if self._in_slow >= self._limits.slow_waiting:
            raise Unavailable(
                "too many grammars that take long wait to be compiled", retry_after=self._limits.seconds
            )
        self._in_slow += 1
        try:
            async with self._slow_turn:
                verdict = await self._slow.validate(constraint, self._limits.seconds)
                if self._in_slow == 1:
                    await self._slow.end()  # such grammars are rare, and it holds 150 MB
                return verdict
        finally:
            self._in_slow -= 1

    async def stop(self) -> None:
        """Running trials end with Unavailable."""
        self._stopped = True
        await asyncio.gather(self._quick.stop(), self._slow.stop())
        await asyncio.gather(*self._proofs.values(), return_exceptions=True)
        await asyncio.gather(self._quick.end(), self._slow.end())
