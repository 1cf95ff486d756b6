"""The queue of a full engine: fair among callers and their users, short before long, without starvation.

It is used only while requests wait; an engine with room costs nothing here. Callers share by the
tokens they were given since the queue began (a virtual token counter, Sheng et al. 2024). The caller who got
least is next, so a flood from one key does not starve another. The same holds among the users of one caller;
a caller gains nothing by inventing users. A newcomer starts at the least of those who wait, not at zero,
or it would have a past to catch up. Among the requests of one user the smallest prompt is next, so a title or
a tag does not wait behind 30,000 tokens. Its size counts less the longer it waits, and nothing after half of
the time it may wait.

Room in the queue is shared too: a newcomer to a full queue evicts a request of the caller who
occupies most of it, if that is more than the newcomer's own caller would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ovserve.access import Rights


@dataclass(frozen=True)
class Limits:
    """The limits of one graph; timeouts in seconds."""

    max_queue: int = 256
    max_queue_tokens: int = 262_144
    queue_timeout: float = 60.0
    request_timeout: float = 3600.0
    stall_timeout: float | None = None  # 0: never; None: the engine's policy
    # Limits that only the server sets:
    max_tokenize_bytes: int = 1 << 20
    max_detokenize_tokens: int = 262_144

    def with_own(self, own: Mapping[str, float]) -> Limits:
        """Return these limits with those that a graph sets itself, by the names of these fields."""
        return replace(self, **own)  # type: ignore[arg-type]  # the names are those of this class

    def of(self, rights: Rights) -> Limits:
        """Return these limits with the timeouts of a key, where they are shorter."""
        if rights.queue_timeout is None and rights.request_timeout is None:
            return self
        return replace(
            self,
            queue_timeout=min(self.queue_timeout, rights.queue_timeout or self.queue_timeout),
            request_timeout=min(self.request_timeout, rights.request_timeout or self.request_timeout),
        )


MAX_IDLE_CALLERS = 4096  # idle callers and users remembered in a queue that is never empty


@dataclass(eq=False)
class Waiter:
    """A request that may have to wait, until `turn` is done."""

    caller: str
    tokens: int  # prompt tokens, estimated
    choices: int  # choices that the engine would hold for it
    arrived: float  # seconds, time.monotonic()
    user: str = ""  # the user of the caller
    weight: float = 1.0  # the caller's share, relative to others
    begun: bool = False  # part of a request that has begun: never evicted for another
    batch: bool = False  # an admitted line of a batch, which waits outside of the queue
    admitted: bool = False  # it may proceed
    awaits_first_token: bool = False  # it is admitted, and its first token has not come
    turn: asyncio.Future[None] = field(init=False)  # set when it has to wait


class FairQueue:
    def __init__(self, patience: float) -> None:
        """`patience`: seconds a request may wait."""
        self._patience = patience
        self._waiting: dict[str, dict[str, list[Waiter]]] = {}  # by caller and user, none empty
        self._served: dict[tuple[str, ...], float] = {}  # tokens by (caller,) and (caller, user)
        self._length = 0
        self.tokens = 0

    def __len__(self) -> int:
        return self._length

    def add(self, waiter: Waiter) -> None:
        caller, user = waiter.caller, waiter.user
        if caller not in self._waiting:
            self._begin((caller,), ((other,) for other in self._waiting))
        users = self._waiting.setdefault(caller, {})
        if user not in users:
            self._begin((caller, user), ((caller, other) for other in users))
        users.setdefault(user, []).append(waiter)
        self._length += 1
        self.tokens += waiter.tokens

    def next(self, now: float, most: int | None = None) -> Waiter | None:
        """Return the next request; it stays in the queue. `most`: only among prompts of at most so many
        tokens."""
        if most is None and self.tokens == self._length and len(self._waiting) == 1:
            (of_users,) = self._waiting.values()
            if len(of_users) == 1:  # requests of one size and one user, as most calls are: the oldest
                return next(iter(of_users.values()))[0]

        def waiting(caller: str, user: str) -> list[Waiter]:
            mine = self._waiting[caller][user]
            return mine if most is None else [waiter for waiter in mine if waiter.tokens <= most]

        callers = [c for c, users in self._waiting.items() if any(waiting(c, user) for user in users)]
        if not callers:
            return None
        caller = min(callers, key=lambda caller: self._served[(caller,)])
        users = [user for user in self._waiting[caller] if waiting(caller, user)]
        user = min(users, key=lambda user: self._served[(caller, user)])
        return min(waiting(caller, user), key=lambda waiter: self._weight(waiter, now))

    def take(self, waiter: Waiter, tokens: float) -> None:
        """Take it out to be admitted, at a cost of `tokens`."""
        self._served[(waiter.caller,)] += tokens / waiter.weight
        self._served[(waiter.caller, waiter.user)] += tokens
        waiter.admitted = True
        self.remove(waiter)

    def remove(self, waiter: Waiter) -> None:
        """Remove a request that left or was admitted; no effect if it is not here."""
        users = self._waiting.get(waiter.caller, {})
        mine = users.get(waiter.user, [])
        if waiter not in mine:
            return
        mine.remove(waiter)
        self._length -= 1
        self.tokens -= waiter.tokens
        if not mine:
            del users[waiter.user]
        if not users:
            del self._waiting[waiter.caller]
        if not self._waiting:
            self._served.clear()

    def eviction_candidate(self, newcomer: Waiter, *, by_tokens: bool) -> Waiter | None:
        """Return the request to evict for the newcomer, or None if the newcomer's caller would hold most.

        It is the latest one of the caller that holds most, in requests or in tokens.
        """

        def held(caller: str) -> int:
            mine = self._of(caller)
            return sum(waiter.tokens for waiter in mine) if by_tokens else len(mine)

        most = max(self._waiting, key=held, default=newcomer.caller)
        if held(most) <= held(newcomer.caller) + (newcomer.tokens if by_tokens else 1):
            return None
        evictable = [waiter for waiter in self._of(most) if not waiter.begun]
        return max(evictable, key=lambda waiter: waiter.arrived, default=None)

    def waiting_of(self, caller: str) -> int:
        return len(self._of(caller))

    def _of(self, caller: str) -> list[Waiter]:
        return [waiter for of_user in self._waiting.get(caller, {}).values() for waiter in of_user]

    def _begin(self, who: tuple[str, ...], others: Iterable[tuple[str, ...]]) -> None:
        """Start to count `who` as waiting, next to `others` of its kind."""
        if len(self._served) > MAX_IDLE_CALLERS:
            present = {(c,) for c in self._waiting} | {(c, u) for c, us in self._waiting.items() for u in us}
            self._served = {name: tokens for name, tokens in self._served.items() if name in present}
        least = min((self._served[other] for other in others), default=0.0)
        self._served[who] = max(self._served.get(who, 0.0), least)

    def _weight(self, waiter: Waiter, now: float) -> tuple[float, float]:
        waited = (now - waiter.arrived) / (self._patience / 2)
        return waiter.tokens * max(0.0, 1 - waited), waiter.arrived
