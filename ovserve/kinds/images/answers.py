"""The answers of POST images/generations and images/edits: one body, or a stream of events.

Images come from the engine in base64 and are put into the answer as they are.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ovserve.api.openai.common import encode
from ovserve.api.openai.describe.operation import Operation
from ovserve.kinds.images.edits import ImageEditRequest
from ovserve.kinds.images.requests import REFUSED, REPORTED, WITHOUT_EFFECT, ImageRequest

Background = Literal["opaque"]
OPAQUE: Background = "opaque"
_HOLE = b'"b64_json":""'  # where the image goes in an encoded answer


class ImageUsage(msgspec.Struct):
    """Images have no tokens here; OpenAI's clients require the fields."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    input_tokens_details: dict[str, int] = msgspec.field(
        default_factory=lambda: {"image_tokens": 0, "text_tokens": 0}
    )


class ImageData(msgspec.Struct):
    b64_json: str
    seed: int


class ImageList(msgspec.Struct):
    created: int
    data: list[ImageData]
    background: Background
    output_format: str
    size: str
    usage: ImageUsage


class ImageEvent(msgspec.Struct):
    """An event of a stream. Its type ends in progress, partial_image or completed."""

    type: str
    image_index: int
    b64_json: str | UnsetType = UNSET
    created_at: int | UnsetType = UNSET
    background: Background | UnsetType = UNSET
    output_format: str | UnsetType = UNSET
    quality: str | UnsetType = UNSET
    size: str | UnsetType = UNSET
    partial_image_index: int | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    step: int | UnsetType = UNSET
    steps: int | UnsetType = UNSET
    usage: ImageUsage | UnsetType = UNSET


def images_body(images: Sequence[tuple[bytes, int]], size: str, output_format: str) -> bytes:
    """Return the body of base64 images with their seeds."""
    head = ImageList(int(time.time()), [], OPAQUE, output_format, size, ImageUsage())
    data = b",".join(b'{"b64_json":"%b","seed":%d}' % image for image in images)
    return encode(head).replace(b'"data":[]', b'"data":[' + data + b"]", 1)


class EventWriter:
    """The events of one stream; `prefix` is image_generation or image_edit."""

    def __init__(self, prefix: str, output_format: str) -> None:
        self._prefix, self._format = prefix, output_format

    def progress(self, index: int, step: int, steps: int) -> bytes:
        name = f"{self._prefix}.progress"
        return _event(name, encode(ImageEvent(name, index, step=step, steps=steps)))

    def partial(self, index: int, number: int, image: bytes, size: str) -> bytes:
        return self._image("partial_image", index, image, size, partial_image_index=number)

    def completed(self, index: int, image: bytes, size: str, seed: int) -> bytes:
        return self._image("completed", index, image, size, seed=seed, usage=ImageUsage())

    def _image(self, kind: str, index: int, image: bytes, size: str, **fields: Any) -> bytes:
        name = f"{self._prefix}.{kind}"
        event = ImageEvent(
            name,
            index,
            b64_json="",
            created_at=int(time.time()),
            background=OPAQUE,
            output_format=self._format,
            quality="auto",
            size=size,
            **fields,
        )
        return _event(name, encode(event).replace(_HOLE, b'"b64_json":"' + image + b'"', 1))


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


DEFAULTS = {
    "n": 1, "size": "auto", "output_format": "png", "output_compression": 100, "partial_images": 0,
}  # fmt: skip
OPERATIONS = (
    Operation(
        "POST",
        "/v3/images/generations",
        "An image, or several, of a text.",
        answer=ImageList,
        event=ImageEvent,
        request=ImageRequest,
        example={"model": "image_generation", "prompt": "a red sofa", "size": "512x512", "seed": 7},
        defaults=DEFAULTS,
        refused=REFUSED,
        reported=REPORTED,
        declared=True,
    ),
    Operation(
        "POST",
        "/v3/images/edits",
        "An image, or several, of an image and a text; with a mask, of the masked part.",
        answer=ImageList,
        event=ImageEvent,
        request=ImageEditRequest,
        example={"model": "image_generation", "prompt": "a red sofa", "image": "data:image/png;base64,..."},
        defaults=DEFAULTS,
        refused=REFUSED,
        reported=dict.fromkeys(WITHOUT_EFFECT, "without effect"),
        declared=True,
    ),
)
