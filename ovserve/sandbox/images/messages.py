"""The frames between the server and a process that decodes images and files. One answer per request, in
order."""

from __future__ import annotations

import msgspec

from ovserve.llm.images import Detail, Image, PixelForm, Pixels, RasterForm


class Decode(msgspec.Struct, frozen=True, tag=True):
    """`data` is a file's content, or its base64 form, which the process decodes as well."""

    data: bytes
    detail: Detail
    max_pixels: int
    base64: bool = False


class DecodedImage(msgspec.Struct, frozen=True, tag=True):
    image: Image


class DecodePixels(msgspec.Struct, frozen=True, tag=True):
    """`data` is a file's content. The image is scaled to the size of `form`, without regard to its aspect."""

    data: bytes
    form: PixelForm
    max_pixels: int


class DecodeRaster(msgspec.Struct, frozen=True, tag=True):
    """`data` is a file's content, or its base64 form. The answer is a DecodedImage."""

    data: bytes
    form: RasterForm
    max_pixels: int
    base64: bool = False


class DecodedPixels(msgspec.Struct, frozen=True, tag=True):
    pixels: Pixels


class Read(msgspec.Struct, frozen=True, tag=True):
    """`data` is the base64 form of a file whose text is requested."""

    data: bytes


class Text(msgspec.Struct, frozen=True, tag=True):
    text: str


class Undecodable(msgspec.Struct, frozen=True, tag=True):
    why: str


Question = Decode | DecodePixels | DecodeRaster | Read
DecodeResult = DecodedImage | DecodedPixels | Text | Undecodable
