"""Settings of engine processes, and the reaction to their memory limit before the kernel kills one.

The limit is checked once a second.

An engine is short of memory when it holds more than its limit, or when the machine or container has less
than MIN_FREE left. New requests are then rejected (`engine/admission/controller.py`); nothing else helps
while others run, because an engine does not give back memory of its cache. So an engine that has grown
since its load is replaced as soon as it is idle, if a fresh one would not be short of memory.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ovserve.engine.client.grammars import GrammarLimits
from ovserve.engine.client.state import RestartPolicy
from ovserve.engine.host.memory import BYTES_PER_MIB, Memory, memory, resident


@dataclass(frozen=True)
class EngineSettings:
    """Settings of all engine processes. Times in seconds."""

    ready_timeout: float = 600.0  # for a process to load its model
    restart_wait: float = 30.0  # how long a request waits for the next process
    stop_grace: float = 10.0  # between Stop and SIGKILL
    keep_shared: bool = False  # the process of small models stays when the last of them is unloaded
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    grammars: GrammarLimits = field(default_factory=GrammarLimits)


MIN_FREE = 256 << 20  # bytes
RESUME_RATIO = 0.95  # part of the limit, below which requests are accepted again
SHARED_CHECK_SECONDS = 0.5


class MemoryLimit:
    """The limit of one engine process. `limit` in bytes; 0: all available memory.

    The limit of a process that holds the models of several clients is checked by each of them: one check
    serves all for `check_seconds`.
    """

    def __init__(self, limit: int, pid: int = 0, *, check_seconds: float = 0.0) -> None:
        self._limit = limit
        self._pid = pid
        self._check_seconds = check_seconds
        self._checked_at = 0.0
        self._loaded = self.held = resident(pid) if pid else 0  # bytes
        self._left = Memory(0)
        self.shortage = ""  # why new requests are rejected

    def fault(self) -> str | None:
        """Return why this engine cannot be used at all, right after its load."""
        if self._limit and self.held > self._limit:
            return (
                f"the engine takes {_mb(self.held)} with its model loaded, over the limit of "
                f"{_mb(self._limit)} (--engine_memory_limit)"
            )
        return None

    def check(self) -> None:
        now = time.monotonic()
        if now - self._checked_at < self._check_seconds:
            return
        self._checked_at = now
        self.held, self._left = resident(self._pid), memory()
        self.shortage = self._short(self._left)

    def loaded(self) -> None:
        """Record that one more model has been loaded: what the process holds now is not growth."""
        self._loaded = self.held = resident(self._pid)

    @property
    def full(self) -> bool:
        return bool(self._limit) and self.held > self._limit

    def _short(self, free: Memory) -> str:
        again = RESUME_RATIO if self.shortage else 1.0
        if self._limit and self.held > self._limit * again:
            return f"the engine holds {_mb(self.held)} of memory, and its limit is {_mb(self._limit)}"
        if free.available and free.available * again < MIN_FREE:
            return f"the {free.limit} has {_mb(free.available)} of memory left"
        return ""

    @property
    def outgrown(self) -> bool:
        """Return whether a fresh engine in its place would not be short of memory."""
        if not self.shortage:
            return False
        given_back = self.held - self._loaded
        over = bool(self._limit) and self.held > self._limit * RESUME_RATIO
        return given_back > 0 and (over or (self._left.available + given_back) * RESUME_RATIO >= MIN_FREE)


def _mb(size: int) -> str:
    return f"{size / BYTES_PER_MIB:.0f} MB"
