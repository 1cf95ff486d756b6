"""Which grammars may go to the engine: proven by a process that may die of it. Used by `client.py`.

A grammar that does not compile raises inside the engine's step and takes all running requests with it, and
one that compiles for a minute holds them up. So each is compiled first in a second child, the same worker
with `only_grammars` set: no model, 150 MB, started with the first grammar. Verdicts are kept, the good and
the bad; who asks while a proof runs shares it. A proof over its time means a killed process and a verdict.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial

import msgspec

from ovserve.engine.messages import Compile, EngineSpec
from ovserve.engine.process import EngineProcess, Word
from ovserve.engine.questions import Questions
from ovserve.errors import EngineDead, InvalidArgument, LoadError, Unavailable
from ovserve.llm.constraint import Constraint, digest

log = logging.getLogger(__name__)

STOP_GRACE = 5.0  # seconds for a killed process to be gone


@dataclass(frozen=True)
class GrammarLimits:
    seconds: float = 10.0  # of one proof
    waiting: int = 64  # proofs that wait for their turn
    kept: int = 2048  # verdicts
    proofs_per_process: int = 500  # then another: the compiler forgets nothing
    # What the engine keeps compiled; then it drops all. They take some 400 times their text: one of ten tools
    # 1 MB, a schema of six strings 60 KB, with a vocabulary of 49152 (measured; dropping all gave it back).
    compiled: int = 256
    compiled_bytes: int = 512 * 1024  # of text


class GrammarProver:
    def __init__(
        self, spec: EngineSpec, *, ready_timeout: float, limits: GrammarLimits | None = None
    ) -> None:
        self._spec = msgspec.structs.replace(spec, only_grammars=True)
        self._ready_timeout = ready_timeout
        self._limits = limits or GrammarLimits()
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()  # by digest: what is wrong, or ""
        self._proofs: dict[bytes, asyncio.Task[str]] = {}
        self._turn = asyncio.Lock()
        self._questions = Questions()
        self._process: EngineProcess | None = None
        self._proven_here = 0
        self._stopped = False
        self.compiles = 0  # proofs that were run, for whoever wonders what the cache spares

    @property
    def pid(self) -> int:
        """Of the process; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    async def prove(self, constraint: Constraint) -> None:
        """Returns at once for a grammar proven before. InvalidArgument with the compiler's words, or for one
        that takes too long; Unavailable when too many wait, or no process can be started."""
        key = digest(constraint.format)
        fault = self._verdicts.get(key)
        if fault is not None:
            self._verdicts.move_to_end(key)
        else:
            fault = await asyncio.shield(self._proof(key, constraint))  # others may wait for it too
        if fault:
            raise InvalidArgument(f"{constraint.param}: {fault}", param=constraint.param)

    def _proof(self, key: bytes, constraint: Constraint) -> asyncio.Task[str]:
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

    def _ended(self, key: bytes, task: asyncio.Task[str]) -> None:
        del self._proofs[key]
        if not task.cancelled():
            task.exception()  # looked at: whoever asked may be gone

    async def _run(self, key: bytes, constraint: Constraint) -> str:
        async with self._turn:
            fault = await self._compile(constraint)
            if fault is None:  # perhaps somebody else killed it; another chance, in a new one
                fault = await self._compile(constraint)
        if fault is None:
            fault = "the grammar compiler breaks down over it; make it simpler"
        self._verdicts[key] = fault
        if len(self._verdicts) > self._limits.kept:
            self._verdicts.popitem(last=False)
        return fault

    async def _compile(self, constraint: Constraint) -> str | None:
        """What is wrong with it, or "". None: the process ended under it."""
        process = await self._ready()
        self.compiles += 1
        self._proven_here += 1
        try:
            async with asyncio.timeout(self._limits.seconds):
                await self._questions.ask(process.send, partial(Compile, format=constraint.format))
        except InvalidArgument as error:
            return f"the grammar does not compile: {error.message}"
        except TimeoutError:
            log.warning("a grammar took more than %g s to compile: refused", self._limits.seconds)
            await self._end()
            return f"the grammar takes more than {self._limits.seconds:g} s to compile; make it simpler"
        except EngineDead:
            log.warning("the process that proves grammars ended under one (%s)", process.how_it_ended())
            await self._end()
            return None
        return ""

    async def _ready(self) -> EngineProcess:
        process = self._process
        if process is not None and (
            process.ended.is_set() or self._proven_here >= self._limits.proofs_per_process
        ):
            await self._end()
        if self._stopped:
            raise Unavailable("the engine is stopping")
        if self._process is None:
            self._process, self._proven_here = EngineProcess(self._on_word, self._on_end), 0
            try:
                await self._process.start(self._spec, ready_timeout=self._ready_timeout)
            except (LoadError, OSError) as error:
                self._process = None
                log.error("grammars cannot be proven: %s", error)
                raise Unavailable("grammars cannot be compiled now", retry_after=5.0) from error
        return self._process

    def _on_word(self, word: Word) -> None:
        self._questions.word(word)

    def _on_end(self) -> None:
        self._questions.fail_all(EngineDead("the process that proves grammars ended"))

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()  # it may be deep in native code, and it holds nothing
            await process.stop(STOP_GRACE)

    async def stop(self) -> None:
        """Running proofs end with Unavailable."""
        self._stopped = True
        self._questions.fail_all(EngineDead("the engine is stopping"))
        await asyncio.gather(*self._proofs.values(), return_exceptions=True)
        await self._end()
