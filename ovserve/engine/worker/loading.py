"""Turns `Load` into a backend, and a failure into `LoadFailed`."""

from __future__ import annotations

from typing import Any

import msgspec

from ovserve.engine.protocol.messages import Load, LoadFailed
from ovserve.engine.protocol.specs import Spec, resolve
from ovserve.engine.worker.mapped_files import MappedFiles
from ovserve.errors import LoadError


def open_backend(load: Load, files: MappedFiles | None = None, *, shared: bool = False) -> tuple[Spec, Any]:
    """Return the spec, and what its backend makes of it. Raises LoadError, or what the backend raises.

    `files` are to be held against changes. `shared`: other models are in this process.
    """
    try:
        spec = load.resolve()
        backend = resolve(type(spec).backend)
    except (ImportError, AttributeError, msgspec.MsgspecError) as error:
        raise LoadError(f"no engine for {load.spec_type}: {error}") from error
    if files is None:
        return spec, backend(spec)
    return spec, files.guard(spec, lambda: backend(spec), shared=shared)


def load_failed(error: LoadError) -> LoadFailed:
    reason = f"{error.file}: {error.reason}" if error.file else error.reason
    return LoadFailed(reason, error.field, error.node, error.transient)
