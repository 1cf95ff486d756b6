"""Recognise requests that end engines when they come again.

When an engine ends, its request is sent to the next one once. A client can send the same request anew,
and so block a graph. Each end counts against the requests that the engine held: 2 points for one that it held
alone, 1 for one among others. At LIMIT points an equal request is rejected for FORGOTTEN seconds.
An answer that completes clears its request. Ends that are not the engine's fault, such as a SIGKILL from
outside, do not count.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from ovserve.engine.protocol.messages import Add
from ovserve.errors import EndsEngine

ALONE, AMONG_OTHERS, LIMIT = 2, 1, 3
FORGOTTEN = 600.0  # seconds after the last end
REMEMBERED = 256  # different requests

_ENCODE = msgspec.msgpack.Encoder().encode


class Suspects:
    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._held: list[bytes] = []  # held by the engine that ended last
        # points, and when they were given
        self._points: OrderedDict[bytes, tuple[int, float]] = OrderedDict()

    def check(self, adds: list[Add]) -> None:
        """Raise EndsEngine for a request that must not be sent."""
        if not self._points:
            return
        points, since = self._points.get(_digest(adds), (0, 0.0))
        left = since + FORGOTTEN - self._now()
        if points >= LIMIT and left > 0:
            raise EndsEngine(
                "The engine ended more than once while it worked on this request, so it is not sent again "
                f"for {left:.0f} s. Change the request; the server's log has the reason."
            )

    def held(self, requests: Iterable[list[Add]]) -> None:
        """Record the requests of an engine that ended; the cause is not known yet."""
        self._held += [_digest(adds) for adds in requests]

    def ended(self, *, by_itself: bool) -> None:
        """Record how the engine ended, now that it is known."""
        held, self._held = set(self._held), []  # equal ones count once: many may ask the same at a time
        if not by_itself:
            return
        now = self._now()
        for digest in held:
            points, since = self._points.pop(digest, (0, now))
            if now - since >= FORGOTTEN:
                points = 0
            self._points[digest] = points + (ALONE if len(held) == 1 else AMONG_OTHERS), now
        while len(self._points) > REMEMBERED:
            self._points.popitem(last=False)

    def completed(self, adds: list[Add]) -> None:
        if self._points:
            self._points.pop(_digest(adds), None)


def _digest(adds: list[Add]) -> bytes:
    """Hash what makes requests equal: everything but their ids, and the seed, which is random by default."""
    found = hashlib.blake2b(digest_size=16)
    for add in adds:
        sampling = msgspec.structs.replace(add.sampling, seed=0)
        found.update(_ENCODE(msgspec.structs.replace(add, id=0, sampling=sampling, last=False)))
    return found.digest()
