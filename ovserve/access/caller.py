"""A Caller: the owner of a key, its rights, and what it has used.

A rate limit per minute is a token bucket: it refills evenly, and a full bucket may be emptied at once.

The end of a running answer is unknown, but the duration of the last ones is known. So `Retry-After` is the
time that the oldest running answer would still take at their mean duration. It is an estimate, and bounded.

A day begins at midnight UTC; its use is that of this server and, as far as known, of others.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple
from urllib.parse import urlsplit

from ovserve.errors import PermissionDenied, RateLimited

# Decide which requests of browsers may change this server.
#
# Without keys the server trusts everyone who reaches it, and any page that an operator visits could send
# requests to 127.0.0.1. So a request that a browser marks as another site's is rejected for calls of the
# console and of administration. For the console's calls, `Host` must be an address, localhost or a name the
# server listens on as well: else a foreign name could be pointed at this machine (DNS rebinding). A key does
# not travel by itself, so with keys neither is needed for administration.


SAME = ("same-origin", "none")


def check_site(headers: Mapping[str, str]) -> None:
    """Raise PermissionDenied for a request that a page of another site makes. `headers` ignore case."""
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    if site is not None:
        same = site in SAME
    elif origin is not None:
        same = urlsplit(origin).netloc.lower() == headers.get("Host", "").lower()
    else:
        same = True  # curl and SDKs: not a browser
    if not same:
        raise PermissionDenied("this call is for pages of this server; the request comes from another site")


def check_host(headers: Mapping[str, str], names: Iterable[str]) -> None:
    """Raise PermissionDenied unless `Host` is an address, localhost or one of `names`."""
    host = urlsplit(f"//{headers.get('Host', '')}").hostname or ""
    if host == "localhost" or host.endswith(".localhost") or host in names:
        return
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise PermissionDenied(
            f"the server has no API key, so the console answers only under an address or localhost, "
            f"not {host!r}; set --api_key_file or --api_keys_file, or name it in --rest_bind_address"
        ) from None


SECONDS_PER_DAY = 86_400


class Usage(NamedTuple):
    """Requests and tokens of one day; `day` counts from 1970-01-01."""

    day: int
    requests: int = 0
    tokens: int = 0


class Day:
    """`unsaved` is the part of `usage` that the store does not have yet."""

    __slots__ = ("_clock", "unsaved", "usage")

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.usage = self.unsaved = Usage(self.today)

    @property
    def today(self) -> int:
        return int(self._clock() // SECONDS_PER_DAY)

    @property
    def seconds_left(self) -> float:
        """Return the seconds until the next day begins."""
        return SECONDS_PER_DAY - self._clock() % SECONDS_PER_DAY

    def current(self) -> Usage:
        if self.usage.day != self.today:
            self.usage = self.unsaved = Usage(self.today)
        return self.usage

    def add(self, *, requests: int = 0, tokens: int = 0) -> None:
        self.current()
        self.usage, self.unsaved = (
            Usage(usage.day, usage.requests + requests, usage.tokens + tokens)
            for usage in (self.usage, self.unsaved)
        )

    def saved(self, usage: Usage, total: Usage) -> None:
        """Record that the unsaved `usage` is now in the store, which has `total` of all servers."""
        if usage.day != self.current().day or total.day != usage.day:
            return
        rest = Usage(usage.day, self.unsaved.requests - usage.requests, self.unsaved.tokens - usage.tokens)
        self.unsaved = rest
        self.usage = Usage(rest.day, total.requests + rest.requests, total.tokens + rest.tokens)


FIRST_SECONDS = 1.0  # while none has ended
LONGEST_SECONDS = 60.0  # one answer of an hour must not block others for an hour
EWMA_WEIGHT = 0.3  # of the last answer in the mean


class Slots:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began: dict[int, float] = {}  # the oldest first
        self._last = 0
        self._mean: float | None = None

    def __len__(self) -> int:
        return len(self._began)

    def begin(self) -> int:
        """Take a slot, which `end` releases."""
        self._last += 1
        self._began[self._last] = self._clock()
        return self._last

    def end(self, slot: int, *, answered: bool) -> None:
        """Release a slot. An answer that was rejected says nothing about their duration."""
        seconds = self._clock() - self._began.pop(slot)
        if answered:
            self._mean = seconds if self._mean is None else self._mean + EWMA_WEIGHT * (seconds - self._mean)

    def wait(self) -> float:
        """Return the seconds until a slot is likely to be free. Overdue answers are assumed to end evenly
        spread."""
        if self._mean is None or not self._began:
            return FIRST_SECONDS
        oldest = self._clock() - next(iter(self._began.values()))
        return min(LONGEST_SECONDS, max(self._mean - oldest, self._mean / len(self._began)))


class Bucket:
    """`take` may go below zero: the tokens of a request are known only after it, and become a debt."""

    __slots__ = ("_at", "_clock", "_level", "per_minute")

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = per_minute
        self._at = clock()

    def take(self, units: float) -> None:
        self._refill()
        self._level -= units

    def wait(self, reserve: float = 0) -> float:
        """Return the seconds until one unit is available besides a reserve; 0 if one is."""
        self._refill()
        needed = min(1 + reserve, self.per_minute)
        return max(0.0, (needed - self._level) * 60 / self.per_minute)

    @property
    def remaining_count(self) -> int:
        self._refill()
        return max(0, int(self._level))

    def _refill(self) -> None:
        now = self._clock()
        self._level = min(self.per_minute, self._level + (now - self._at) * self.per_minute / 60)
        self._at = now


@dataclass(frozen=True)
class Rights:
    """The rights of a key. None means no limit."""

    models: tuple[str, ...] | None = None  # names, or patterns such as "qwen*"
    admin: bool = False  # may change what is served
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # prompt and generated tokens together
    requests_per_day: int | None = None  # from midnight UTC, on all servers that share stored responses
    tokens_per_day: int | None = None
    concurrency: int | None = None  # requests at the same time
    max_queue: int | None = None  # requests waiting for the same engine
    queue_timeout: float | None = None  # seconds; applies if the graph's is longer
    request_timeout: float | None = None
    weight: float = 1.0  # its share of a full engine, relative to other keys

    @property
    def limited_by_day(self) -> bool:
        return self.requests_per_day is not None or self.tokens_per_day is not None


class Caller:
    """One identity. `name` owns stored responses; it is "" for keys without names. Usage outlives changes of
    rights."""

    def __init__(self, name: str, rights: Rights, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._clock = clock
        self._slots = Slots(clock)
        self.day = Day()
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self.allow(rights)

    def allow(self, rights: Rights) -> None:
        """Replace the rights. A limit that stays the same keeps its usage."""
        self.rights = rights
        self._limited_by_day = rights.limited_by_day
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
        """Take a slot for one more concurrent answer; give it back with `leave`.

        Raises RateLimited with the seconds after which a slot is likely to be free.
        """
        limit = self.rights.concurrency
        if limit is not None and self.running >= limit:
            message = f"this key may have {_counted(limit, 'requests')} at the same time"
            raise RateLimited(message, retry_after=self._slots.wait())
        return self._slots.begin()

    def leave(self, slot: int, *, answered: bool) -> None:
        self._slots.end(slot, answered=answered)

    def ask(self, *, batch: bool = False) -> None:
        """Count one more request. Raises RateLimited with the seconds after which the next one is accepted. A
        line of a `batch` leaves half of a minute's allowance to live requests."""
        waits = []
        for what, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None and (wait := bucket.wait(bucket.per_minute / 2 if batch else 0)):
                waits.append((wait, f"this key may have {_counted(bucket.per_minute, what)} per minute"))
        rights = self.rights
        if self._limited_by_day:
            usage = self.day.current()
            for what, limit, count in (
                ("requests", rights.requests_per_day, usage.requests),
                ("tokens", rights.tokens_per_day, usage.tokens),
            ):
                if limit is not None and count >= limit:
                    waits.append(
                        (self.day.seconds_left, f"this key may have {_counted(limit, what)} per day (UTC)")
                    )
        if waits:
            wait, message = max(waits)
            raise RateLimited(message, retry_after=wait)
        if self._requests is not None:
            self._requests.take(1)
        if self._limited_by_day:
            self.day.add(requests=1)

    def spend(self, tokens: int) -> None:
        if self._tokens is not None:
            self._tokens.take(tokens)
        if self._limited_by_day:
            self.day.add(tokens=tokens)

    @property
    def limited(self) -> bool:
        """Return whether requests or tokens per minute are."""
        return self._requests is not None or self._tokens is not None

    def remaining(self) -> dict[str, tuple[int, int]]:
        """Return limit and remaining amount of requests and of tokens, for those that are limited."""
        limited = {"requests": self._requests, "tokens": self._tokens}
        return {what: (int(b.per_minute), b.remaining_count) for what, b in limited.items() if b is not None}


def _counted(number: float, what: str) -> str:
    return f"{number:.0f} {what.removesuffix('s') if number == 1 else what}"


ANYONE = Caller("", Rights(admin=True))  # while no keys are required
SYSTEM = Caller("system", Rights(admin=True))  # the server itself
NOBODY = Caller("", Rights(models=()))  # has shown no key yet
