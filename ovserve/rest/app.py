"""The aiohttp application and its runner: the route table, the limits, and the settings that differ from
aiohttp's own. Built by `server.py`; tests use the same runner, never aiohttp's test server, whose defaults
differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from ovserve.rest.middleware import Handler, answer_errors, identify
from ovserve.rest.v2 import V2
from ovserve.rest.v3 import V3
from ovserve.serving.manager import Manager

VERSIONS = ("/v3", "/v1", "/v3/v1")  # the last is what some clients make of a /v3 base address


@dataclass(frozen=True)
class RestLimits:
    body_bytes: int
    shutdown_seconds: float  # for handlers to return once the runner is cleaned up


def routes(manager: Manager) -> list[tuple[str, str, Handler]]:
    """Every path: method, pattern, handler."""
    v2, v3 = V2(manager), V3(manager)
    table: list[tuple[str, str, Handler]] = [
        ("GET", "/v2/health/live", v2.live),
        ("GET", "/v2/health/ready", v2.ready),
        ("GET", "/health", v2.ready),
        ("GET", "/", v2.live),
    ]
    for version in VERSIONS:
        table += [
            ("POST", version + "/{endpoint:(?:chat/)?completions}", v3.infer),
            ("GET", version + "/models", v3.list_models),
            ("GET", version + "/models/{model:.+}", v3.get_model),
            ("GET", version + "/health", v2.ready),
        ]
    return table


def build_app(manager: Manager, limits: RestLimits) -> web.Application:
    app = web.Application(middlewares=[identify, answer_errors], client_max_size=limits.body_bytes)
    for method, pattern, handler in routes(manager):
        app.router.add_route(method, pattern, handler)
        if method == "GET":
            app.router.add_route("HEAD", pattern, handler)
    return app


def build_runner(app: web.Application, limits: RestLimits) -> web.AppRunner:
    return web.AppRunner(
        app,
        handler_cancellation=True,  # by default a client that left is noticed at the next write only
        access_log=None,  # middleware.identify writes the line
        shutdown_timeout=limits.shutdown_seconds,
        auto_decompress=True,
    )
