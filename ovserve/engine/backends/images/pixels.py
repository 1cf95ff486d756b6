"""Images between the library's tensors, pixels in blobs, and the base64 form of files."""

from __future__ import annotations

import binascii
import io
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray
from PIL import Image as Pillow

from ovserve.engine.protocol.images import Format, Raster
from ovserve.errors import Internal

Image = NDArray[np.uint8]  # [height, width, 3]


def tensor_of(blob: Any, raster: Raster) -> Any:
    """Return a tensor [1, height, width, 3] of the pixels in a blob."""
    pixels = np.frombuffer(blob, np.uint8).reshape(1, raster.height, raster.width, 3)
    return openvino.Tensor(np.array(pixels))


def pixels_of(tensor: Any) -> Image:
    """Return a copy of the first image. Raises Internal for what a stopped run returns."""
    shape = tuple(tensor.shape)
    if len(shape) != 4 or shape[-1] != 3:
        raise Internal(f"the library returned an image of shape {list(shape)}")
    pixels: Image = np.array(tensor.data[0], np.uint8)
    return pixels


def encoded(image: Image, format_: Format, quality: int) -> bytes:
    """Return base64 of a file, which goes into the answer as it is. `quality` has no effect on png."""
    file = io.BytesIO()
    options = {} if format_ == "png" else {"quality": quality}
    Pillow.fromarray(image).save(file, format_, **options)
    return binascii.b2a_base64(file.getbuffer(), newline=False)
