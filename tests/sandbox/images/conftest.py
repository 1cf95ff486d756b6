"""Pictures made by Pillow, as files."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image as Pillow


def picture(
    format_: str = "PNG",
    size: tuple[int, int] = (64, 48),
    color: Any = (200, 30, 90),
    mode: str = "RGB",
    **options: Any,
) -> bytes:
    """One colour all over."""
    file = io.BytesIO()
    Pillow.new(mode, size, color).save(file, format_, **options)
    return file.getvalue()
