"""When a replica may leave, without Ray."""

from __future__ import annotations

import asyncio
from typing import Any

from ovserve.deploy.ray.passthrough import Answer, Handled, Passthrough, Request

QUIET = 1.5  # seconds


class Desk:
    """Answers every request itself, after some time."""

    async def handle(self, request: Request) -> Handled | None:
        await asyncio.sleep(float(request.path[1:]))
        return Handled(200, {}, b"{}")

    def elsewhere(self, request: Request, body: bytes) -> Answer:
        raise NotImplementedError


async def ask(passthrough: Passthrough, seconds: float) -> None:
    asked = False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if asked:
            await asyncio.Event().wait()  # the client stays
        asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        pass

    scope = {"type": "http", "method": "GET", "path": f"/{seconds}", "headers": []}
    await passthrough(scope, receive, send)


async def test_a_replica_is_idle_when_none_has_come_for_a_while() -> None:
    """Serve sends requests to a replica that ends until it knows: with gaps, each would meet its end."""
    passthrough = Passthrough(None, Desk())  # type: ignore[arg-type]
    idle = asyncio.ensure_future(passthrough.idle(QUIET))
    for _ in range(12):  # longer than QUIET
        await ask(passthrough, 0.01)
        assert not idle.done()
        await asyncio.sleep(QUIET / 10)
    long = asyncio.ensure_future(ask(passthrough, 1.5 * QUIET))
    await asyncio.wait((idle, long), return_when=asyncio.FIRST_COMPLETED)
    assert not idle.done(), "one was running"
    await asyncio.wait_for(idle, 60)
