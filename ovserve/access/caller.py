"""A Caller: what stands behind a key, and what it has used. Made by `keys.py`; asked by `calls.py`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ovserve.access.bucket import Bucket
from ovserve.access.slots import Slots
from ovserve.errors import PermissionDenied, RateLimited


@dataclass(frozen=True)
class Rights:
    """What a key allows. None is no limit."""

    models: tuple[str, ...] | None = None  # names, or patterns such as "qwen*"
    admin: bool = False  # may change what is served
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # of prompts and answers together
    concurrency: int | None = None  # requests at the same time
    max_queue: int | None = None  # of them that wait for the same engine
    queue_timeout: float | None = None  # seconds; where the graph's is longer
    request_timeout: float | None = None
    weight: float = 1.0  # its share of a full engine, beside those of others


class Caller:
    """Its name owns what it stores; "" where keys have no names. Its use outlives changes of its rights."""

    def __init__(self, name: str, rights: Rights, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._clock = clock
        self._slots = Slots(clock)
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self.allow(rights)

    def allow(self, rights: Rights) -> None:
        """Set what it may. A limit that stays the same keeps what was used of it."""
        self.rights = rights
        self._requests = self._bucket(self._requests, rights.requests_per_minute)
        self._tokens = self._bucket(self._tokens, rights.tokens_per_minute)

    def _bucket(self, old: Bucket | None, per_minute: int | None) -> Bucket | None:
        if per_minute is None:
            return None
        return old if old is not None and old.per_minute == per_minute else Bucket(per_minute, self._clock)

    def may_use(self, model: str) -> bool:
        patterns = self.rights.models
        return patterns is None or any(fnmatchcase(model, pattern) for pattern in patterns)

    def require_admin(self) -> None:
        if not self.rights.admin:
            raise PermissionDenied("this key may not change what is served; it needs `admin = true`")

    @property
    def running(self) -> int:
        return len(self._slots)

    def enter(self) -> int:
        """One more answer at the same time; `leave` with what it returns. Raises RateLimited, with the
        seconds after which a slot is likely to be free."""
        limit = self.rights.concurrency
        if limit is not None and self.running >= limit:
            plural = "" if limit == 1 else "s"
            raise RateLimited(
                f"this key may have {limit} request{plural} at the same time", retry_after=self._slots.wait()
            )
        return self._slots.begin()

    def leave(self, slot: int, *, answered: bool) -> None:
        self._slots.end(slot, answered=answered)

    def ask(self) -> None:
        """One more request. Raises RateLimited with the seconds after which the next one is taken."""
        waits = []
        for what, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None and (wait := bucket.wait()):
                waits.append((wait, f"this key may have {bucket.per_minute:g} {what} per minute"))
        if waits:
            wait, message = max(waits)
            raise RateLimited(message, retry_after=wait)
        if self._requests is not None:
            self._requests.take(1)

    def spend(self, tokens: int) -> None:
        if self._tokens is not None:
            self._tokens.take(tokens)

    def remaining(self) -> dict[str, tuple[int, int]]:
        """Of requests and tokens, as far as limited: the limit, and what is left of it now."""
        limited = {"requests": self._requests, "tokens": self._tokens}
        return {what: (int(b.per_minute), b.left) for what, b in limited.items() if b is not None}


ANYONE = Caller("", Rights(admin=True))  # while no keys are required
SYSTEM = Caller("system", Rights(admin=True))  # the server itself
NOBODY = Caller("", Rights(models=()))  # has shown no key yet
