"""The application that Ray Serve imports: `ovserve.deploy.ray.app:build`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import serve

from ovserve.deploy.ray.plan import DEPLOYMENTS, HAPROXY, SESSION
from ovserve.deploy.ray.replica import Replica
from ovserve.deploy.ray.router import attach
from ovserve.errors import InvalidArgument

KNOWN = frozenset(
    ("options", "keys", "affinity", "data_plane", "max_num_seqs", "load_timeout", "shutdown_timeout")
)


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
