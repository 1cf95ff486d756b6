"""Turns `Load` into a backend, and a failure into `LoadFailed`."""

from __future__ import annotations

from typing import Any

import msgspec

from ovserve.engine.protocol.messages import Load, LoadFailed
from ovserve.engine.protocol.specs import Spec, resolve
from ovserve.errors import LoadError


def open_backend(load: Load) -> tuple[Spec, Any]:
    """Return the spec, and what its backend makes of it. Raises LoadError, or what the backend raises."""
    try:
        spec = load.resolve()
        backend = resolve(type(spec).backend)
    except (ImportError, AttributeError, msgspec.MsgspecError) as error:
        raise LoadError(f"no engine for {load.spec_type}: {error}") from error
    return spec, backend(spec)


def load_failed(error: LoadError) -> LoadFailed:
    reason = f"{error.file}: {error.reason}" if error.file else error.reason
    return LoadFailed(reason, error.field, error.node)
