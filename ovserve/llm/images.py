"""Images of a request: as a client names them, as an engine gets them, and the tags that hold their places.

A dialect puts a tag into a message's text for each image it meets and keeps an ImageSource; `media/` makes an
Image of each source; the engine library finds the tags in the rendered prompt. The tag is the library's own,
so that any chat template carries it through as text.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Detail = Literal["low", "high", "auto"]
DETAILS: tuple[Detail, ...] = ("low", "high", "auto")

TAG_PREFIX = "<ov_genai_image_"
RESERVED = (TAG_PREFIX, "<ov_genai_video_")  # in a client's text they would stand for images of others
BYTES_PER_PIXEL = 3


def tag(index: int) -> str:
    """Where image number `index` of the request goes."""
    return f"{TAG_PREFIX}{index}>"


class ImageSource(msgspec.Struct, frozen=True):
    """What a client sent. `url` is a data URL, an http or https URL, or the path of a file."""

    url: str
    param: str  # the field that held it, for errors
    detail: Detail = "auto"


class Image(msgspec.Struct, frozen=True, weakref=True):
    """`rgb` has height rows of width pixels of three bytes, without padding."""

    width: int
    height: int
    rgb: bytes
