"""The texts of OVMS's options `shape`, `batch_size` and `layout`, as OpenVINO's types."""

from __future__ import annotations

import re
from typing import Any

import openvino as ov

from ovserve.errors import LoadError

AUTO = "auto"
_LAYOUT = re.compile(r"(?=.*N|\.{0,3})[A-Z?.,\[\]]+")


def dimension(text: str, field: str) -> ov.Dimension:
    """Return the dimension of `5`, `-1`, `1:8` or `auto`, which is dynamic. Raises LoadError."""
    text = text.strip()
    low, colon, high = text.partition(":")
    try:
        if text.lower() == AUTO:
            return ov.Dimension(-1)
        if not colon:
            size = int(text)
            if size < -1:
                raise ValueError
            return ov.Dimension(size)
        bounds = int(low), int(high)
        if not 0 <= bounds[0] <= bounds[1]:
            raise ValueError
        return ov.Dimension(*bounds)
    except ValueError:
        wanted = "a number, -1 for any, a range such as 1:8, or auto"
        raise LoadError(f"expected {wanted}, got {text!r}", field=field) from None


def partial_shape(text: str, own: Any) -> ov.PartialShape:
    """Return the shape of `(1,3,200:500,-1)` or `auto`, every dimension dynamic. Raises LoadError."""
    if text.strip().lower() == AUTO:
        if own.rank.is_dynamic:
            return ov.PartialShape.dynamic()
        return ov.PartialShape([-1] * own.rank.get_length())
    inner = text.strip()
    if inner[:1] in "([" and inner[-1:] in ")]":
        inner = inner[1:-1]
    return ov.PartialShape([dimension(part, "shape") for part in inner.split(",") if part.strip()])


def layout_pair(text: str) -> tuple[str, str]:
    """Return the layouts of client and model of `NHWC:NCHW`, or of `NHWC`, which are the same."""
    of_client, colon, of_model = text.strip().upper().partition(":")
    of_model = of_model if colon else of_client
    for one in (of_client, of_model):
        if not _LAYOUT.fullmatch(one):
            raise LoadError(f"expected a layout such as NHWC or NHWC:NCHW, got {text!r}", field="layout")
    return of_client, of_model
