"""The server as administrators see it: versions, options, keys, processes and their memory."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from ovserve import __version__
from ovserve.access import Guard
from ovserve.engine.host.memory import memory, resident
from ovserve.serving.manager import Manager
from ovserve.serving.servable import Servable
from ovserve.serving.status import ServableStatus

PACKAGES = ("openvino-genai", "openvino", "openvino-tokenizers", "aiohttp", "uvloop", "msgspec", "protobuf")
STARTED = time.time()


def server_info(
    manager: Manager, guard: Guard, options: Mapping[str, tuple[object, object]]
) -> dict[str, Any]:
    """`options` are value and default by name, without secrets."""
    available = memory()
    return {
        "version": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.release()}, {os.cpu_count()} processors",
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "pid": os.getpid(),
        "started": STARTED,
        "memory": resident(os.getpid()),
        "available": available.available,
        "limit": available.limit,
        "fault": manager.fault,
        "options": {n: {"value": v, "default": d} for n, (v, d) in options.items()},
        "keys": [_key(entry.caller, entry.expires) for entry in guard.entries],
        "models": [_model(manager, status.name) for status in manager.statuses()],
    }


def _model(manager: Manager, name: str) -> dict[str, Any]:
    entry = manager.entries.entry(name)
    status = entry.status
    return {
        "name": name,
        "state": _state(status),
        "reason": status.reason,
        "parent": entry.spec.adapter.parent if entry.spec.adapter is not None else None,
        "revision": status.revision,
        "since": status.since,
        "graph": str(entry.spec.graph),
        "running": entry.servable.running if entry.servable is not None else 0,
        "context": entry.servable.max_length if entry.servable is not None else None,
        "engines": _engines(entry.servable) if entry.servable is not None else [],
    }


def _state(status: ServableStatus) -> str:
    if status.failed:
        return "FAILED"
    if status.error_code == "UNAVAILABLE":
        return "RESTARTING"
    return status.state_detail.upper() or status.state.name


def _engines(servable: Servable) -> list[dict[str, Any]]:
    return [
        {
            "packet": packet,
            "kind": engine.spec.kind,
            "model": os.path.basename(getattr(engine.spec, "model_path", "")),
            "device": getattr(engine.spec, "device", ""),
            "pid": engine.pid,
            "state": engine.state.name,
            "memory": resident(engine.pid) if engine.pid else 0,
            "restarts": engine.stats().restarts,
        }
        for packet, engine in servable.engines.items()
    ]


def _key(caller: Any, expires: float | None) -> dict[str, Any]:
    rights, usage = caller.rights, caller.day.current()
    limits = (
        *("requests_per_minute", "tokens_per_minute", "requests_per_day", "tokens_per_day"),
        *("concurrency", "max_queue"),
    )
    return {
        "name": caller.name,
        "admin": rights.admin,
        "models": rights.models,
        "limits": {name: value for name in limits if (value := getattr(rights, name)) is not None},
        "today": {"requests": usage.requests, "tokens": usage.tokens},
        "remaining": {what: remaining for what, (_, remaining) in caller.remaining().items()},
        "running": caller.running,
        "expires": expires,
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
