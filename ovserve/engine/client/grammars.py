"""The grammars of an engine: each is tried before the engine gets it, in a process that may die of it.

A grammar that does not compile raises inside the engine's step and fails all running requests with it, and
one that compiles for a minute delays them. Only one that is cheap by its form (`llm/grammar/cost.py`) goes to
the engine directly. The kernel limits the CPU time of a trial, which does not depend on how busy the machine
is, and the memory (`worker/helper.py`). A process that runs out of CPU time, or crashes, does so because of
the grammar. One that was killed or stopped from outside says nothing about it, so it is tried once more.

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
import logging
import math
import signal
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from ovserve.engine.client.mailbox import PendingCalls, Question
from ovserve.engine.client.process import EngineProcess
from ovserve.engine.host.memory import cpu_seconds
from ovserve.engine.protocol.messages import ClearGrammars, Compile
from ovserve.engine.protocol.specs import GrammarSpec, PagedTextSpec, Spec
from ovserve.errors import EngineDead, InvalidArgument, LoadError, ResourceExhausted, Unavailable
from ovserve.llm.grammar.constraint import Constraint, digest
from ovserve.llm.grammar.cost import is_cheap

# A helper process of an engine: the engine's worker with a tokenizer and no model, some 150 MB.
#
# Its first call starts it. It answers one call at a time, holds no other work, and may be deep in native
# code, so it is ended without being asked to. So it is when its caller leaves. A call that follows gets
# another process.


log = logging.getLogger(__name__)

STOP_GRACE = 5.0  # seconds for a killed process to be gone
CHECK_SECONDS = 0.5  # between two checks for progress


class HelperEnded(Unavailable):
    """The process ended under the call. `status` is its exit status; negative: the signal that ended it."""

    def __init__(self, message: str, status: int | None) -> None:
        super().__init__(message)
        self.status = status


class HelperProcess:
    def __init__(
        self,
        spec: Callable[[], Spec],
        does: str,
        unable: str,
        *,
        ready_timeout: float,
        most_calls: int | None = None,
    ) -> None:
        """`does` and `unable` are for messages: what the process does, and what cannot be done without it.

        After `most_calls` another process is started.
        """
        self._spec, self._does, self._unable = spec, does, unable
        self._ready_timeout, self._most_calls = ready_timeout, most_calls
        self._process: EngineProcess | None = None
        self._pending = PendingCalls()
        self._calls_of_process = 0
        self._stopped = False
        self.turn = asyncio.Lock()  # to be held around a call
        self.calls = 0

    @property
    def pid(self) -> int:
        """Return the PID of the process; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    async def call(
        self,
        make: Callable[[int], Question],
        *,
        seconds: float | None = None,
        stuck_seconds: float = math.inf,
    ) -> Any:
        """Return the answer to the message that `make` builds for a number. Raises the error of the answer.

        Raises TimeoutError after `seconds`. A process that gets no CPU time for `stuck_seconds` is killed: it
        is stopped, or waits forever. Raises HelperEnded, and Unavailable when none can be started.
        """
        process = await self._ready()
        self.calls += 1
        self._calls_of_process += 1
        watching = asyncio.create_task(_watch(process, stuck_seconds), name="helper watchdog")
        try:
            async with asyncio.timeout(seconds):
                return await self._pending.call(process.send, make)
        except (TimeoutError, asyncio.CancelledError):  # else the next call would wait for this one as well
            await self.end()
            raise
        except EngineDead as error:
            if self._stopped:
                raise Unavailable("the engine is stopping") from None
            await process.stop(STOP_GRACE)  # not killed at once, because its own exit status counts
            await self.end()
            log.warning("the process that %s ended under a call (%s)", self._does, process.how_it_ended())
            raise HelperEnded(error.message, process.exit_status) from None
        finally:
            watching.cancel()

    async def end(self) -> None:
        """Kill it; the next call starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await process.stop(STOP_GRACE)

    async def rest(self) -> None:
        """End it if it has no work."""
        if not self.turn.locked():
            await self.end()

    async def stop(self) -> None:
        """Stop for good; a running call ends with Unavailable."""
        self._stopped = True
        self._pending.fail_all(EngineDead("the engine is stopping"))
        await self.end()
        async with self.turn:  # a call may have been starting one
            await self.end()

    async def _ready(self) -> EngineProcess:
        process = self._process
        if process is not None and (process.ended.is_set() or self._calls_of_process == self._most_calls):
            await self.end()
        if self._stopped:
            raise Unavailable("the engine is stopping")
        if self._process is None:
            self._process, self._calls_of_process = EngineProcess(self._pending.on_message, self._on_end), 0
            try:
                await self._process.start(self._spec(), ready_timeout=self._ready_timeout)
            except BaseException as error:
                self._process = None  # `start` has ended it
                if not isinstance(error, LoadError | OSError):
                    raise
                log.error("%s: %s", self._unable, error)
                raise Unavailable(f"{self._unable} now", retry_after=5.0) from error
        return self._process

    def _on_end(self) -> None:
        self._pending.fail_all(EngineDead(f"the process that {self._does} ended"))


async def _watch(process: EngineProcess, stuck_seconds: float) -> None:
    cpu_time, since = cpu_seconds(process.pid), 0.0
    while since < stuck_seconds:
        await asyncio.sleep(CHECK_SECONDS)
        now = cpu_seconds(process.pid)
        since = since + CHECK_SECONDS if now is not None and now == cpu_time else 0.0
        cpu_time = now
    process.kill(f"it has used no CPU time for {stuck_seconds:g} s")


SLOW_NICENESS = 10  # of the process for slow grammars
NOT_ITS_FAULT = (None, 0, -signal.SIGKILL, -signal.SIGTERM)  # exit statuses that say nothing about a grammar


class GrammarLimits(msgspec.Struct, frozen=True):
    seconds: float = 10.0  # of CPU time for one grammar
    quick_seconds: float = 1.0  # of these, in the first stage
    wait_seconds: float = 60.0  # of wall time that one request waits for a verdict
    stuck_seconds: float = 10.0  # without any CPU time; then the process is replaced
    waiting: int = 64  # grammars that wait for their turn
    slow_waiting: int = 8  # how many of them may wait for the second stage
    max_verdicts: int = 2048
    kept_seconds: float = 60.0  # those about CPU time
    trials_per_process: int = 500  # then another process: the compiler never frees memory
    # What the engine keeps compiled; then it drops everything. Grammars use some 400 times their text: ten
    # tools 1 MB, a schema of six strings 60 KB, with a vocabulary of 49152 (measured; dropping freed it all).
    compiled: int = 256
    compiled_bytes: int = 512 * 1024  # of text
    compiled_memory: int = 512 << 20  # bytes, for grammars that need much more than their text suggests


class Verdict(msgspec.Struct, frozen=True):
    """The result of a trial. `fault`: what is wrong with the grammar, or ""."""

    fault: str = ""
    memory: int = 0  # bytes that it uses when compiled, as far as measured
    over_time: bool = False  # its CPU time ran out, so nothing else is known about it
    until: float = math.inf  # `time.monotonic()`; it is valid so long


class Trial:
    """A grammar on trial. `waiters`: requests whose clients have not left."""

    task: asyncio.Task[Verdict]
    waiters = 0

    def check(self) -> None:
        if not self.waiters:
            raise Unavailable("no client waits for this grammar")


class GrammarProver:
    def __init__(self, spec: Spec, *, ready_timeout: float, limits: GrammarLimits) -> None:
        self._limits = limits
        paged = isinstance(spec, PagedTextSpec)

        def helper(niceness: int) -> HelperProcess:
            return HelperProcess(
                lambda: GrammarSpec(
                    spec.model_path, spec.device, spec.properties, paged=paged, niceness=niceness
                ),
                "compiles grammars",
                "grammars cannot be compiled",
                ready_timeout=ready_timeout,
                most_calls=limits.trials_per_process,
            )

        self._quick, self._slow = helper(0), helper(SLOW_NICENESS)
        self._in_slow = 0
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()  # by digest
        self._trials: dict[bytes, Trial] = {}

    @property
    def pid(self) -> int:
        """PID of the process for quick grammars; 0 while there is none."""
        return self._quick.pid

    @property
    def compiles(self) -> int:
        """Return how many trials were run."""
        return self._quick.calls + self._slow.calls

    async def validate(self, constraint: Constraint, *, parallel: bool = False) -> int | None:
        """Return the bytes that a grammar uses when compiled; at once if it was tried before.

        None: it is cheap, and the engine compiles it in parallel to its steps, so it was not tried. Raises
        InvalidArgument with the compiler's message, or for a grammar that needs too much CPU time or memory.
        Raises Unavailable when too many wait, the time to wait is over, or no process can be started.
        """
        if parallel and is_cheap(constraint.format):
            return None
        key = digest(constraint.format)
        verdict = self._verdict_of(key) or await self._wait(self._trial(key, constraint))
        if verdict.fault:
            raise InvalidArgument(f"{constraint.param}: {verdict.fault}", param=constraint.param)
        return verdict.memory

    async def stop(self) -> None:
        """Stop; running trials end with Unavailable."""
        await asyncio.gather(self._quick.stop(), self._slow.stop())
        await asyncio.gather(*(trial.task for trial in self._trials.values()), return_exceptions=True)

    async def rest(self) -> None:
        """End the processes, if they have no trial, until the next one."""
        await asyncio.gather(self._quick.rest(), self._slow.rest())

    def _verdict_of(self, key: bytes) -> Verdict | None:
        verdict = self._verdicts.get(key)
        if verdict is not None and verdict.until < time.monotonic():
            del self._verdicts[key]
            return None
        if verdict is not None:
            self._verdicts.move_to_end(key)
        return verdict

    def _trial(self, key: bytes, constraint: Constraint) -> Trial:
        if (trial := self._trials.get(key)) is None:
            if len(self._trials) >= self._limits.waiting:
                raise Unavailable("too many new grammars wait to be compiled", retry_after=1.0)
            trial = self._trials[key] = Trial()
            trial.task = asyncio.create_task(self._run(key, constraint, trial), name="grammar trial")
            trial.task.add_done_callback(_retrieve)
        return trial

    async def _wait(self, trial: Trial) -> Verdict:
        trial.waiters += 1
        try:
            async with asyncio.timeout(self._limits.wait_seconds):
                return await asyncio.shield(trial.task)  # other requests may wait for it too
        except asyncio.CancelledError:
            trial.waiters -= 1
            raise
        except TimeoutError:
            raise Unavailable(
                f"the grammar could not be compiled within {self._limits.wait_seconds:g} s, "
                "because this machine is busy; try again",
                retry_after=5.0,
            ) from None

    async def _run(self, key: bytes, constraint: Constraint, trial: Trial) -> Verdict:
        seconds, quick = self._limits.seconds, self._limits.quick_seconds
        try:
            async with self._quick.turn:
                trial.check()
                verdict = await self._try(self._quick, constraint, min(seconds, quick))
            if verdict.over_time and quick < seconds:
                verdict = await self._run_slow(constraint, trial)
        finally:
            del self._trials[key]  # at once: a request that comes now must not join a trial that was dropped
        self._verdicts[key] = verdict
        if len(self._verdicts) > self._limits.max_verdicts:
            self._verdicts.popitem(last=False)
        return verdict

    async def _run_slow(self, constraint: Constraint, trial: Trial) -> Verdict:
        if self._in_slow >= self._limits.slow_waiting:
            raise Unavailable("too many slow grammars wait to be compiled", retry_after=self._limits.seconds)
        self._in_slow += 1
        try:
            async with self._slow.turn:
                try:
                    trial.check()
                    return await self._try(self._slow, constraint, self._limits.seconds)
                finally:
                    if self._in_slow == 1:
                        await self._slow.end()  # such grammars are rare, and it holds 150 MB
        finally:
            self._in_slow -= 1

    async def _try(self, helper: HelperProcess, constraint: Constraint, seconds: float) -> Verdict:
        """Compile within `seconds` of CPU time. Raises Unavailable when the grammar could not be judged."""
        compile_ = partial(Compile, format=constraint.format, cpu_seconds=seconds)
        for _ in range(2):
            try:
                return Verdict(memory=await helper.call(compile_, stuck_seconds=self._limits.stuck_seconds))
            except InvalidArgument as error:
                return Verdict(f"the grammar does not compile: {error.message}")
            except ResourceExhausted as error:
                return self._about_time(f"the grammar is too slow: {error.message}")
            except HelperEnded as ended:
                if ended.status == -signal.SIGPROF:
                    takes = (
                        f"the grammar needs more than {seconds:g} s of CPU time to compile; make it simpler"
                    )
                    return self._about_time(takes, over_time=True)
                if ended.status not in NOT_ITS_FAULT:
                    return Verdict("the grammar compiler crashes on it; make it simpler")
        raise Unavailable(
            "the process that compiles grammars was stopped or killed twice; try again", retry_after=5.0
        )

    def _about_time(self, fault: str, *, over_time: bool = False) -> Verdict:
        return Verdict(fault, over_time=over_time, until=time.monotonic() + self._limits.kept_seconds)


def _retrieve(task: asyncio.Task[Verdict]) -> None:
    """Mark a trial's exception as seen: no request may be left to see it."""
    if not task.cancelled():
        task.exception()


class CompiledGrammars:
    """The grammars that the current engine process holds compiled.

    The library's compiler only ever adds to its cache. When that is full by count or size, the engine must
    drop everything, which discards the compiler; what is needed later is compiled again. That happens only
    while no request waits for a compilation, so a grammar that was waited for is there when its request is
    sent.
    """

    def __init__(self, limits: GrammarLimits, pending: PendingCalls) -> None:
        """`pending` holds the engine's calls."""
        self._limits, self._pending = limits, pending
        self._held: set[bytes] = set()
        self._sizes: list[int] = []  # text sizes of the grammars requested since the last drop
        self._memory = 0  # bytes that they use, as far as measured
        self._under_way = 0
        self._none_under_way = asyncio.Event()
        self.drops = 0

    def __contains__(self, constraint: Constraint) -> bool:
        return digest(constraint.format) in self._held

    def renew(self) -> None:
        """Reset for a new process, which holds no grammar."""
        self._held, self._sizes, self._memory = set(), [], 0

    async def add(self, send: Callable[[Any], None], constraint: Constraint, memory: int | None = 0) -> None:
        """Have the process compile it. `memory`: bytes that a trial used for it; None: it was not tried.

        Raises what `PendingCalls.call` raises; InvalidArgument with the field of the request.
        """
        while self._full and self._under_way:
            await self._none_under_way.wait()
        if constraint in self:
            return
        if self._full:
            send(ClearGrammars())
            self.renew()
            self.drops += 1
        held = self._held
        self._sizes.append(len(constraint.format))
        self._memory += memory or 0
        self._under_way += 1
        self._none_under_way.clear()
        try:
            compile_ = partial(Compile, format=constraint.format, validated=memory is not None)
            size: int = await self._pending.call(send, compile_)
            self._memory += max(size - (memory or 0), 0)
        except InvalidArgument as error:
            raise InvalidArgument(
                f"{constraint.param}: the grammar does not compile: {error.message}", param=constraint.param
            ) from error
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._none_under_way.set()
        held.add(digest(constraint.format))  # a stale set if the process was replaced meanwhile

    @property
    def _full(self) -> bool:
        limits = self._limits
        return (
            len(self._sizes) >= limits.compiled
            or sum(self._sizes) >= limits.compiled_bytes
            or self._memory >= limits.compiled_memory
        )
