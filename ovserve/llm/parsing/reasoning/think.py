"""What the `<think>` dialects share: whether a template knows the tags; no dialect itself."""

from __future__ import annotations


def has_think(template: str) -> bool:
    """The tag, or the idiom by which templates cut old thinking out of history."""
    return "<think>" in template or "content.split('</think>')" in template
