"""The application that Ray Serve imports, `ovserve.deploy.ray.app:build`, and its session affinity.

Serve's HAProxy asks the `Router` for the replica of each POST. The hook that attaches it is internal to Ray
and not stable; `attach` does without where it is gone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from ray import serve

from ovserve.deploy.ray.passthrough import Message, Receive, Send, lifespan, session_of
from ovserve.deploy.ray.plan import BUSY, DEPLOYMENTS, HAPROXY, ROUTER, SESSION, SESSION_HEADER
from ovserve.deploy.ray.replica import Replica
from ovserve.errors import InvalidArgument

KNOWN = frozenset(
    ("options", "keys", "affinity", "data_plane", "max_num_seqs", "load_timeout", "shutdown_timeout")
)
HOOK = "_with_ingress_request_router"
LARGE_BODY = 256 << 10  # bytes of a body that is scanned off the event loop
RECENT_SECONDS = 1.0  # requests sent since then may not be in what a replica reported
SESSION_REPLICAS = 3  # replicas that a session may go to, in this order
ROUTER_REPLICAS = 2  # one may be replaced while the other answers

log = logging.getLogger(__name__)


def build(args: Mapping[str, Any]) -> Any:
    """Return the application for the `args` of a configuration. Raises InvalidArgument for unknown ones."""
    return application(args, {})


def application(args: Mapping[str, Any], deployment: Mapping[str, Any], version: str = "") -> Any:
    if unknown := sorted(args.keys() - KNOWN):
        raise InvalidArgument(f"args: unknown: {', '.join(unknown)}; known: {', '.join(sorted(KNOWN))}")
    options = {name: str(value) for name, value in dict(args.get("options") or {}).items()}
    affinity = args.get("affinity", SESSION)
    if affinity not in DEPLOYMENTS:
        raise InvalidArgument(f"args: affinity: expected one of {', '.join(DEPLOYMENTS)}, got {affinity!r}")
    server = serve.deployment(serve.ingress()(Replica), name=DEPLOYMENTS[affinity], **deployment)
    if version:
        # Without it every `serve.run` replaces all replicas. `serve deploy` makes its own from `args`.
        server._version = version
    bound = server.bind(
        options,
        bool(args.get("keys", False)),
        float(args.get("load_timeout", 300.0)),
        float(args.get("shutdown_timeout", 3600.0)),
    )
    if args.get("data_plane") == HAPROXY and affinity == SESSION:
        return attach(bound, int(args.get("max_num_seqs", 32)))
    return bound


class Router:
    """Picks the owner of a session; the next one if that has more to do than it computes at a time."""

    def __init__(self, server: Any, most: int) -> None:
        """`server` is the handle of the replicas, `most` the requests that one computes at the same time."""
        self._server, self._most = server, most
        self._sent: dict[str, deque[float]] = {}

    def __serve_build_asgi_app__(self) -> Any:
        async def app(scope: Message, receive: Receive, send: Send) -> None:
            await self.answer(scope, receive, send)

        return app  # uvicorn takes a bound method for an application of ASGI 2

    async def answer(self, scope: Message, receive: Receive, send: Send) -> None:
        """The ASGI application: POST /internal/route with the body of the request that is to be routed."""
        if scope["type"] != "http":
            await lifespan(receive, send)
            return
        chunks, more = [], True
        while more:
            message = await receive()
            chunks.append(message.get("body", b""))
            more = bool(message.get("more_body", False)) and message["type"] == "http.request"
        session = _session_header(scope["headers"]) or await _of(b"".join(chunks))
        body = json.dumps(await self._pick(session)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _pick(self, session: str) -> dict[str, Any]:
        """Return the address of a replica, in the form that Serve's script for HAProxy reads."""
        best, least = None, 0.0
        for turn in range(SESSION_REPLICAS):
            salted = f"{session}/{turn}" if session and turn else session
            async with self._server.options(session_id=salted).choose_replica(_reserve=False) as selection:
                replica = selection._replica
            busy = self._busy(replica)
            if best is None or busy < least:
                best, least = replica, busy
            if busy < self._most:
                best = replica
                break
        assert best is not None
        name = best.replica_id.to_full_id_str()
        self._sent.setdefault(name, deque(maxlen=4 * self._most)).append(time.monotonic())
        host, port = best.backend_http_endpoint
        return {"host": host, "port": port, "replica_id": name}

    def _busy(self, replica: Any) -> float:
        """Return the requests of a replica: those that it reported, and those sent to it since."""
        sent_times = self._sent.get(replica.replica_id.to_full_id_str(), deque())
        while sent_times and sent_times[0] < time.monotonic() - RECENT_SECONDS:
            sent_times.popleft()
        return float(replica.routing_stats.get(BUSY, 0.0)) + len(sent_times)


def attach(server: Any, most: int) -> Any:
    """Return the application with a router in front, or as it is where Ray has no such hook any more."""
    if not hasattr(server, HOOK):
        log.warning("this version of Ray has no %s: sessions are not kept on one replica", HOOK)
        return server
    deployment = serve.deployment(
        serve.ingress()(Router),
        name=ROUTER,
        num_replicas=ROUTER_REPLICAS,
        max_ongoing_requests=1000,
        ray_actor_options={"num_cpus": 0},
        health_check_period_s=2.0,
    )
    return getattr(server, HOOK)(deployment.bind(server, most))


def _session_header(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the session that the client names. A proxy may have written the name with underscores."""
    for name, value in headers:
        if name.lower().replace(b"_", b"-") == SESSION_HEADER:
            return value.decode("latin-1")
    return ""


async def _of(body: bytes) -> str:
    return await asyncio.to_thread(session_of, body) if len(body) > LARGE_BODY else session_of(body)
