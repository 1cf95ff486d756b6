"""A child process that compiles grammars on trial.

It is the engine's worker with a `GrammarSpec`: a tokenizer, no model, 150 MB. The kernel limits the CPU time
of one trial, which does not depend on how busy the machine is, and the memory (`worker/grammars.py`). A
process that runs out of CPU time, or crashes, does so because of the grammar. One that was killed or stopped
from outside says nothing about the grammar, which is tried once more in another process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from ovserve.engine.client.calls import PendingCalls
from ovserve.engine.client.process import EngineMessage, EngineProcess
from ovserve.engine.host.memory import cpu_seconds
from ovserve.engine.protocol.messages import Compile
from ovserve.engine.protocol.specs import GrammarSpec, PagedTextSpec, Spec
from ovserve.errors import EngineDead, InvalidArgument, LoadError, ResourceExhausted, Unavailable
from ovserve.llm.grammar.constraint import Constraint

log = logging.getLogger(__name__)

STOP_GRACE = 5.0  # seconds for a killed process to be gone
CHECK_SECONDS = 0.5  # between two checks for progress
NOT_ITS_FAULT = (0, -signal.SIGKILL, -signal.SIGTERM)  # exit statuses that say nothing about a grammar


@dataclass(frozen=True)
class Verdict:
    """The result of a trial. `fault`: what is wrong with the grammar, or ""."""

    fault: str = ""
    memory: int = 0  # bytes that it uses when compiled, as far as measured
    over_time: bool = False  # its CPU time ran out, so nothing else is known about it
    kept: bool = True  # the verdict is not about CPU time, so it stays valid


class GrammarProcess:
    """Runs one trial at a time. `niceness` lowers its priority below that of the engines."""

    def __init__(
        self,
        spec: Spec,
        *,
        ready_timeout: float,
        stuck_seconds: float,
        trials: int,
        niceness: int = 0,
    ) -> None:
        paged = isinstance(spec, PagedTextSpec)
        self._spec = GrammarSpec(spec.model_path, spec.device, spec.properties, paged=paged)
        self._ready_timeout = ready_timeout
        self._stuck_seconds = stuck_seconds
        self._trials = trials
        self._niceness = niceness
        self._process: EngineProcess | None = None
        self._pending = PendingCalls()
        self._tried_here = 0
        self._stopped = False
        self.compiles = 0  # trials, for tests that count what the verdict cache saves

    @property
    def pid(self) -> int:
        """Return the PID of the child; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    async def validate(self, constraint: Constraint, seconds: float) -> Verdict:
        """Compile within `seconds` of CPU time. Raises Unavailable when the grammar could not be judged."""
        for _ in range(2):
            verdict = await self._try(constraint, seconds)
            if verdict is not None:
                return verdict
        raise Unavailable(
            "the process that compiles grammars was stopped or killed twice; try again", retry_after=5.0
        )

    async def end(self) -> None:
        """Kill it: it may be deep in native code, and it holds no work."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await process.stop(STOP_GRACE)

    async def stop(self) -> None:
        """Stop for good; a running trial ends with Unavailable."""
        self._stopped = True
        self._pending.fail_all(EngineDead("the engine is stopping"))
        await self.end()

    async def _try(self, constraint: Constraint, seconds: float) -> Verdict | None:
        """Run a trial; return None when the process was ended from outside."""
        process = await self._ready()
        self.compiles += 1
        self._tried_here += 1
        make = partial(Compile, format=constraint.format, cpu_seconds=seconds)
        watching = asyncio.create_task(self._watch(process), name="grammar process watchdog")
        try:
            memory: int = await self._pending.call(process.send, make)
            return Verdict(memory=memory)
        except InvalidArgument as error:
            return Verdict(f"the grammar does not compile: {error.message}")
        except ResourceExhausted as error:
            return Verdict(f"the grammar is too slow: {error.message}", kept=False)
        except EngineDead:
            if self._stopped:
                raise Unavailable("the engine is stopping") from None
            return await self._died(process, seconds)
        finally:
            watching.cancel()

    async def _died(self, process: EngineProcess, seconds: float) -> Verdict | None:
        await process.stop(STOP_GRACE)  # not killed at once, because its own exit status counts
        await self.end()
        status = process.exit_status
        log.warning("the process that compiles grammars ended under one (%s)", process.how_it_ended())
        if status == -signal.SIGPROF:
            takes = f"the grammar needs more than {seconds:g} s of CPU time to compile; make it simpler"
            return Verdict(takes, over_time=True, kept=False)
        if status is None or status in NOT_ITS_FAULT:
            return None
        return Verdict("the grammar compiler crashes on it; make it simpler")

    async def _watch(self, process: EngineProcess) -> None:
        """Kill a process that gets no CPU time at all: it is stopped, or waits forever."""
        used, since = cpu_seconds(process.pid), 0.0
        while since < self._stuck_seconds:
            await asyncio.sleep(CHECK_SECONDS)
            now = cpu_seconds(process.pid)
            since = since + CHECK_SECONDS if now is not None and now == used else 0.0
            used = now
        process.kill(f"it has used no CPU time for {self._stuck_seconds:g} s")

    async def _ready(self) -> EngineProcess:
        process = self._process
        if process is not None and (process.ended.is_set() or self._tried_here >= self._trials):
            await self.end()
        if self._stopped:
            raise Unavailable("the engine is stopping")
        if self._process is None:
            self._process, self._tried_here = EngineProcess(self._on_message, self._on_end), 0
            try:
                await self._process.start(self._spec, ready_timeout=self._ready_timeout)
            except (LoadError, OSError) as error:
                self._process = None
                log.error("grammars cannot be compiled: %s", error)
                raise Unavailable("grammars cannot be compiled now", retry_after=5.0) from error
            if self._niceness:
                lower_priority(self._process.pid, self._niceness)
        return self._process

    def _on_message(self, message: EngineMessage) -> None:
        self._pending.on_message(message)

    def _on_end(self) -> None:
        self._pending.fail_all(EngineDead("the process that compiles grammars ended"))


def lower_priority(pid: int, niceness: int) -> None:
    """Lower the priority of all threads: Linux has one priority per thread, inherited by the threads it
    starts."""
    with suppress(OSError):  # it ended, or this system has no /proc
        for task in os.listdir(f"/proc/{pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(task), niceness)
