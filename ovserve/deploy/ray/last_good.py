"""The last configuration that a replica could serve, kept in the cluster.

A replica that starts while a wrong configuration is deployed serves this one, as the older replicas do.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from ray.experimental import internal_kv

NAMESPACE = b"ovserve"
log = logging.getLogger(__name__)


def store(replica: Any, user_config: object) -> None:
    """Keep a configuration for all replicas of a deployment. `replica` is a Serve ReplicaID."""
    internal_kv._internal_kv_put(_key(replica), msgspec.json.encode(user_config), True, namespace=NAMESPACE)


def get(replica: Any) -> object:
    stored = internal_kv._internal_kv_get(_key(replica), namespace=NAMESPACE)
    return None if stored is None else msgspec.json.decode(stored)


def _key(replica: Any) -> bytes:
    deployment = replica.deployment_id
    return f"{deployment.app_name}\0{deployment.name}".encode()


def forget(app: str, deployment: str) -> None:
    """Remove what is kept for a deployment that is deleted."""
    internal_kv._internal_kv_del(f"{app}\0{deployment}".encode(), namespace=NAMESPACE)
