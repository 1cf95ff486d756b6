"""The replica of a Ray Serve deployment: it owns one server process and applies configurations to it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

import aiohttp
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from ovserve.access.keys import entry_text
from ovserve.deploy.ray import last_good, merged, rollout
from ovserve.deploy.ray.child import Child
from ovserve.deploy.ray.merged import METRIC, requests_in
from ovserve.deploy.ray.passthrough import (
    Answer,
    Handled,
    Head,
    Headers,
    Passthrough,
    Request,
    Upstream,
    relay,
)
from ovserve.deploy.ray.plan import BUSY
from ovserve.errors import InvalidArgument, LoadError, Unavailable

# These change one replica only; the next one to be asked would not know.
REFUSED = re.compile(
    r"POST (/v1/config/reload|/v2/repository/models/.*|/v2/logging|/api/pull|.*/(un)?load_lora_adapter)"
)
MERGED = ("/metrics", "/v1/config")
OWN_KEY = "ovserve-ray-replica"
LOOK_SECONDS = 0.1  # between two looks at the states of a server that starts
PEER_SECONDS = 5.0  # in which another replica has to report
LEAVE_SECONDS = 30.0  # a replica whose server has ended gives those answers that others send through it
LINGER_SECONDS = 0.5  # without a request: Serve sends some until its third health check has failed
# To find another replica: Serve leads back here until its third health check has failed, after 6 s.
TRIES, TRY_SECONDS = 80, 0.25

log = logging.getLogger(__name__)


class Replica:
    """The class that Ray Serve deploys. `options` are those of `ovserve serve`, as text, by name."""

    def __init__(
        self, options: Mapping[str, str], keys: bool, load_timeout: float, shutdown_timeout: float
    ) -> None:
        """`keys`: clients need one of those in the configuration."""
        self._options, self._load, self._shutdown = dict(options), load_timeout, shutdown_timeout
        self._keys = keys
        self._child = Child()
        self._upstream = Upstream(str(self._child.socket))
        self._passthrough = Passthrough(self._upstream, self)
        self._key = secrets.token_urlsafe(32)
        self._authorization: Headers = []
        self._fault = ""
        self._changing = asyncio.Lock()
        self._leaving: asyncio.Task[None] | None = None
        self._id = serve.get_replica_context().replica_id
        self._handle: Any = None

    def __serve_build_asgi_app__(self) -> Passthrough:
        return self._passthrough

    # -- called by Ray Serve

    async def reconfigure(self, user_config: object) -> None:
        """Apply a configuration. A wrong one raises only where nothing is served yet: an exception would
        make Serve replace replicas that serve the old one."""
        async with self._changing:
            if not self._child.pid:
                await self._first(user_config)
                return
            try:
                self._write(rollout.parse(user_config))
                await self._reload()
            except (LoadError, InvalidArgument) as error:
                self._report(str(error))
            else:
                self._fault = ""
                last_good.store(self._id, user_config)

    async def check_health(self) -> None:
        """Raise if the server does not answer. An engine that restarts is the server's own matter."""
        try:
            async with asyncio.timeout(10.0):
                status, _ = await self._upstream.fetch("GET", "/v2/health/live")
        except (aiohttp.ClientError, OSError) as error:  # some of them cannot be sent to Serve's controller
            raise RuntimeError(f"/v2/health/live: {error!r}") from None
        if status != 200:
            raise RuntimeError(f"/v2/health/live: {status}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        if not self._child.socket.exists():
            return {METRIC: 0.0}  # Serve asks before the first configuration is applied
        _, page = await self._upstream.fetch("GET", "/metrics", self._authorization)
        return {METRIC: requests_in(page.decode())}

    async def record_routing_stats(self) -> dict[str, float]:
        return {BUSY: next(iter((await self.record_autoscaling_stats()).values()))}

    async def __del__(self) -> None:
        await self._upstream.close()
        await asyncio.to_thread(self._child.stop, self._shutdown)

    # -- called by other replicas

    async def report(self) -> dict[str, Any]:
        """Return what this replica serves, and why that is not what it was given; "" if it is."""
        _, states = await self._upstream.fetch("GET", "/v1/config", self._authorization)
        return {"replica": self._id.unique_id, "states": json.loads(states), "fault": self._fault}

    async def scrape(self) -> dict[str, str]:
        _, page = await self._upstream.fetch("GET", "/metrics", self._authorization)
        return {"replica": self._id.unique_id, "page": page.decode()}

    async def relay(self, method: str, target: str, headers: Headers, body: bytes) -> AsyncIterator[Any]:
        """Answer a request of a replica whose server has ended. Yields first whether it can."""
        if not self._child.alive:
            await asyncio.sleep(TRY_SECONDS)  # in Serve's count of requests, so that it prefers another one
            yield False
            return
        yield True
        async for part in relay(self._upstream, Request(method, target, headers), body):
            yield tuple(part) if isinstance(part, Head) else part

    # -- called by the pass-through

    async def handle(self, request: Request) -> Handled | None:
        if REFUSED.fullmatch(f"{request.method} {request.path}"):
            text = f"{request.path} would change one replica of several; change the deployment instead"
            status, headers, body = request.error(InvalidArgument(text))
            return Handled(409, headers, body)
        if request.method != "GET" or request.path not in MERGED or not self._child.alive:
            return None
        status, body = await self._upstream.fetch("GET", request.target, request.headers)
        if status != 200:  # such as 401; again, for its headers
            return None
        if request.path == "/metrics":
            pages = {one["replica"]: one["page"] for one in await self._of_all("scrape")}
            return Handled(
                200,
                {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
                merged.metrics(pages).encode(),
            )
        reports = await self._of_all("report")
        visible = json.loads(body).keys()  # to the caller's key
        states = {r["replica"]: {n: s for n, s in r["states"].items() if n in visible} for r in reports}
        faults = {r["replica"]: r["fault"] for r in reports if r["fault"]}
        return Handled(200, {}, merged.states(states, faults))

    async def elsewhere(self, request: Request, body: bytes) -> Answer:
        self._has_ended()
        for _ in range(TRIES):
            parts = await self._forward(request, body)
            if parts is not None:
                async for part in parts:
                    yield Head(*part) if isinstance(part, tuple) else part
                return
        raise Unavailable(
            "the server process of this replica has ended, and there is no other", retry_after=5.0
        )

    # -- parts

    async def _forward(self, request: Request, body: bytes) -> Any:
        """Return the rest of the answer of a replica that takes a request, None if the one asked does not."""
        handle = self._peers().options(method_name="relay", stream=True)
        parts = handle.remote(request.method, request.target, request.headers, body)
        try:
            async with asyncio.timeout(PEER_SECONDS):
                if await anext(parts, False):
                    return parts
        except (RayError, RayServeException, TimeoutError) as error:
            log.warning("another replica did not take a request: %s", error)
            await asyncio.sleep(TRY_SECONDS)
        return None

    async def _first(self, user_config: object) -> None:
        """Start the server. Raises LoadError if what it is given cannot be served, and no configuration
        that was served before is known."""
        try:
            await self._start(user_config)
            last_good.store(self._id, user_config)
        except (LoadError, InvalidArgument) as error:
            previous = last_good.get(self._id)
            self._child.end(0)
            if previous is None or previous == user_config:
                raise
            self._report(f"{error}; the last configuration that could be served is used")
            await self._start(previous)
        loop = asyncio.get_running_loop()

        def ended(code: int) -> None:
            loop.call_soon_threadsafe(self._has_ended, code)

        self._child.watch(ended)

    async def _start(self, user_config: object) -> None:
        target = rollout.parse(user_config)
        self._write(target)
        keys = self._child.directory / rollout.KEYS if self._keys else None
        self._child.start(self._options, self._child.directory / rollout.CONFIG, keys)
        async with asyncio.timeout(self._load):
            while merged.loading(states := await self._states()):  # noqa: ASYNC110  in another process
                await asyncio.sleep(LOOK_SECONDS)
        if failures := merged.failures(states):
            raise LoadError("; ".join(failures))
        if absent := [e.name for e in target.graphs if e.name not in states]:
            raise LoadError(f"not served: {', '.join(absent)}; the log of the replica says why")

    async def _states(self) -> dict[str, Any]:
        """Return GET /v1/config of a server that starts. Raises LoadError if it ends instead."""
        while True:
            try:
                status, body = await self._upstream.fetch("GET", "/v1/config", self._authorization)
            except (aiohttp.ClientError, OSError):
                if not self._child.alive:
                    raise LoadError("the server did not start; its log is that of the replica") from None
                await asyncio.sleep(LOOK_SECONDS)
                continue
            if status == 200:
                states: dict[str, Any] = json.loads(body)
                return states
            raise LoadError(f"/v1/config: {status}: {body.decode(errors='replace')}")

    async def _reload(self) -> None:
        """Apply the files. Raises LoadError with the server's reason; it then serves what it did."""
        status, body = await self._upstream.fetch("POST", "/v1/config/reload", self._authorization)
        if status not in (200, 201):
            raise LoadError(body.decode(errors="replace"))

    def _write(self, target: rollout.Rollout) -> None:
        """Write the files. Where keys are required, the replica has one of its own. Raises LoadError."""
        if bool(target.keys) != self._keys:
            raise LoadError(f"keys: expected {'some' if self._keys else 'none'}, as `args: keys` says")
        own = ""
        if self._keys:
            own = f"{entry_text(OWN_KEY, self._key)}admin = true\n"
            self._authorization = [(b"authorization", f"Bearer {self._key}".encode())]
        elif key := os.environ.get("OVSERVE_API_KEY") or os.environ.get("API_KEY"):
            self._authorization = [(b"authorization", f"Bearer {key}".encode())]
        rollout.unpack(target, self._child.directory, own)

    def _report(self, fault: str) -> None:
        self._fault = fault
        log.error("the configuration of the deployment is not served: %s", fault)

    def _peers(self) -> Any:
        if self._handle is None:
            deployment = self._id.deployment_id
            self._handle = serve.get_deployment_handle(deployment.name, deployment.app_name)
        return self._handle

    async def _of_all(self, method: str) -> list[Any]:
        """Return what every replica reports; one that does not answer in time is left out."""
        answers = self._peers().broadcast(method)
        results = await answers.results_async(timeout_s=PEER_SECONDS, return_exceptions=True)
        return [one for one in results if not isinstance(one, BaseException)]

    def _has_ended(self, code: int | None = None) -> None:
        """The server has ended: this process follows, so that Serve starts another replica."""
        if self._leaving is None:
            log.error("the server process ended with code %s; the replica ends too", code)
            self._leaving = asyncio.ensure_future(self._leave())

    async def _leave(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._passthrough.idle(LINGER_SECONDS)
        self._child.stop(0)
        os._exit(1)
