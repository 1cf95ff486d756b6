"""Images of a request: how a client names them, how an engine gets them, and the tags that hold their places.

An endpoint puts a tag into a message's text for each image and keeps an ImageSource; `sandbox/images/` makes
an Image of each source; the engine library finds the tags in the rendered prompt. The tag is the library's
own, so that any chat template carries it through as text.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Literal

import msgspec

from ovserve.errors import InvalidArgument

Detail = Literal["low", "high", "auto", "original"]
DETAILS: tuple[Detail, ...] = ("low", "high", "auto", "original")

TAG_PREFIX = "<ov_genai_image_"
# As the library looks for them, and broken ones.
_TAGS = re.compile(r"<ov_genai_(?:image|video)_[^>]{0,20}>?")


def tag(index: int) -> str:
    """Return the tag for image number `index` of the request."""
    return f"{TAG_PREFIX}{index}>"


class PixelForm(msgspec.Struct, frozen=True):
    """The pixels that an input of a plain model takes: at least and at most so many; -1: any number."""

    width: tuple[int, int] = (0, -1)
    height: tuple[int, int] = (0, -1)
    channels: int = 3  # or 1, grey
    bgr: bool = True  # the order of the colours that OVMS decodes to


class RasterForm(msgspec.Struct, frozen=True):
    """The pixels that an image engine takes: RGB, upright, scaled to a size.

    A size of 0 is the image's own, scaled down into the bounds of `most`, in multiples of `multiple`.
    """

    width: int = 0
    height: int = 0
    most: tuple[int, int] = (0, 0)
    multiple: int = 8
    mask: bool = False  # white where it is transparent; if nothing is, where it is white


class Pixels(msgspec.Struct, frozen=True):
    """Images of one size: 8 bits per channel, row by row, the channels of a pixel together."""

    width: int
    height: int
    data: bytes


class ImageTokens(msgspec.Struct, frozen=True):
    """The number of tokens of an image in prompts of a model: `same` for all, or one for each square.

    Squares have sides of `side` pixels, and `markers` stand around them. As in Qwen2-VL's processor, the
    image is first rounded to whole squares and scaled into the bounds of pixels.
    """

    same: int = 0
    side: int = 0
    min_pixels: int = 0
    max_pixels: int = 0
    markers: int = 0

    def of(self, width: int, height: int) -> int:
        """The size in pixels."""
        if not self.side:
            return self.same
        wide, high = (math.floor(pixels / self.side + 0.5) for pixels in (width, height))
        pixels = wide * high * self.side**2
        if pixels > self.max_pixels:
            scale = math.sqrt(width * height / self.max_pixels) * self.side
            wide, high = math.floor(width / scale), math.floor(height / scale)
        elif pixels < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (width * height)) / self.side
            wide, high = math.ceil(width * scale), math.ceil(height * scale)
        return wide * high + self.markers


class Vision(msgspec.Struct, frozen=True):
    """The facts about a model that takes images. `markers` are texts that stand for images in its prompts;
    `exactly_one` is OVMS's rule for an NPU, whose models are compiled for one image. `tokens` is None where
    only the engine knows it, from the image itself; `added` are tokens that it puts around each prompt."""

    markers: tuple[str, ...] = ()
    exactly_one: bool = False
    tokens: ImageTokens | None = None
    added: int = 0

    def check(self, prompt: str, images: int, param: str) -> None:
        """The prompt has the tag of each image once and in order, and nothing else that stands for one.

        The library rejects some of that, is silent about some, and dies of the rest. A tag too
        many is a client's text; one that is lost, a chat template's doing. Raises InvalidArgument.
        """
        if self.exactly_one and images != 1:
            raise InvalidArgument(
                f"{param}: this model runs on an NPU, where a request has exactly one image, not {images}",
                param=param,
            )
        tags, expected_tags = _TAGS.findall(prompt), [tag(i) for i in range(images)]
        times, allowed = Counter(tags), frozenset(expected_tags)
        strange = [text for text, count in times.items() if text not in allowed or count > 1]
        strange += [marker for marker in self.markers if marker in prompt]
        if strange:
            raise InvalidArgument(
                f"{param}: {strange[0]!r} is how this model marks an image, and cannot be part of a text",
                param=param,
            )
        if tags != expected_tags:
            raise InvalidArgument(
                f"{param}: the chat template shows {len(tags)} of {images} images, or not in their order",
                param=param,
            )


def texts_between(prompt: str, images: int) -> list[str]:
    """The pieces of a checked prompt that the model reads as text, each by itself: one more than images."""
    pieces = []
    for i in range(images):
        before, _, prompt = prompt.partition(tag(i))
        pieces.append(before)
    return [*pieces, prompt]


class ImageSource(msgspec.Struct, frozen=True):
    """An image as the client sent it. `url` is a data URL, an http or https URL, or the path of a file."""

    url: str
    param: str  # the field that held it, for errors
    detail: Detail = "auto"


class Image(msgspec.Struct, frozen=True, weakref=True):
    """`rgb` has height rows of width pixels of three bytes, without padding."""

    width: int
    height: int
    rgb: bytes
