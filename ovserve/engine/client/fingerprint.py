"""`system_fingerprint`: a short name for everything besides the request that an answer depends on.

Two answers to one request and seed may differ if the fingerprint differs: other weights, options or release.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from ovserve import __version__
from ovserve.engine.protocol.specs import Facts, Spec


def fingerprint(spec: Spec, facts: Facts, graph: bytes = b"") -> str:
    """Hash the spec, the facts and `graph` (the nodes and the authors' code).

    Model files count by name, size and time, because reading gigabytes would take longer than loading.
    """
    path = Path(spec.model_path)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    stats = [(file.name, file.stat().st_size, int(file.stat().st_mtime)) for file in files if file.is_file()]
    stable_facts = msgspec.structs.replace(facts, load_seconds=0.0)
    digest = hashlib.sha256(msgspec.msgpack.encode([__version__, spec, stable_facts, stats, graph]))
    return f"fp_{digest.hexdigest()[:12]}"
