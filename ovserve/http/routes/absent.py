"""Paths of the APIs we speak that this server does not have: a 404 that says why. Used by `middleware.py`.

Without a row here such a path is unknown, or a 405 where another path's pattern has its shape.
"""

from __future__ import annotations

import re

from ovserve.errors import NotFound

_ABSENT = (
    (
        re.compile(r"/(?:.+/)?images/embeddings"),
        "this server embeds text, and has no embeddings of images",
    ),
    (
        re.compile(r"/(?:.+/)?responses/compact"),
        "conversations are not compacted here; truncation: auto of responses leaves the oldest turns out",
    ),
)


def why_absent(path: str) -> NotFound | None:
    """None for a path that nothing is known of."""
    for pattern, why in _ABSENT:
        if pattern.fullmatch(path):
            return NotFound(f"no such path: {path}; {why}")
    return None
