"""How much memory an engine may take, and what is done before the kernel does it. Held by `client.py`, which
looks once a second.

An engine is short of memory when it holds more than its limit, or when the machine or container has less
than RESERVE left. New requests are refused then (`serving/gate.py`), all that helps while others run:
what an engine has taken for its cache it does not give back. So an engine that holds more than its limit, or
has grown by more than RESERVE since its load, is replaced as soon as it has no work.
"""

from __future__ import annotations

from ovserve.engine.machine import Memory, memory, resident

RESERVE = 256 << 20  # bytes
AGAIN = 0.95  # of the limit, below which requests are taken again
MEGABYTE = 1 << 20


class Ceiling:
    """Of one engine process. `limit` in bytes; 0: what there is."""

    def __init__(self, limit: int, pid: int = 0) -> None:
        self._limit = limit
        self._pid = pid
        self._loaded = self.held = resident(pid) if pid else 0  # bytes
        self.shortage = ""  # why new requests are refused

    def fault(self) -> str | None:
        """Why this engine cannot be used at all, right after its load."""
        if self._limit and self.held > self._limit:
            return (
                f"the engine takes {_mb(self.held)} with its model loaded, over the limit of "
                f"{_mb(self._limit)} (--engine_memory_limit)"
            )
        return None

    def look(self) -> None:
        self.held = resident(self._pid)
        self.shortage = self._short(memory())

    def _short(self, left: Memory) -> str:
        again = AGAIN if self.shortage else 1.0
        if self._limit and self.held > self._limit * again:
            return f"the engine holds {_mb(self.held)} of memory, and its limit is {_mb(self._limit)}"
        if left.available and left.available * again < RESERVE:
            return f"the {left.limit} has {_mb(left.available)} of memory left"
        return ""

    @property
    def outgrown(self) -> bool:
        """Another engine would take less."""
        return bool(self.shortage) and self.held - self._loaded > (0 if self._limit else RESERVE)


def _mb(size: int) -> str:
    return f"{size / MEGABYTE:.0f} MB"
