"""Decoding: formats, what becomes of odd pictures, and what is refused before it costs anything."""

from __future__ import annotations

import base64
import io
import struct
import zlib

import pytest
from PIL import Image as Pillow
from PIL import ImageOps, PngImagePlugin

from ovserve.llm.images import Detail, Image, RasterForm
from ovserve.sandbox.images import documents as images
from ovserve.sandbox.images.documents import MAX_ASPECT, MIN_SIDE, unpacked
from ovserve.sandbox.images.loader import Bounds
from ovserve.sandbox.messages import Undecodable
from tests.sandbox.images.conftest import picture

RED = (200, 30, 90)
MAX_PIXELS = Bounds().pixels


def decode(data: bytes, detail: Detail) -> Image:
    return images.decode(data, detail, MAX_PIXELS)


def pixel(image: Image, x: int = 0, y: int = 0) -> tuple[int, ...]:
    at = (y * image.width + x) * 3
    return tuple(image.rgb[at : at + 3])


def near(got: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return all(abs(a - b) <= 4 for a, b in zip(got, expected, strict=True))


def png_of(width: int, height: int) -> bytes:
    """A header that announces so many pixels, and hardly any data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("format_", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_formats(format_: str) -> None:
    image = decode(picture(format_), "auto")
    assert (image.width, image.height, len(image.rgb)) == (64, 48, 64 * 48 * 3)
    assert near(pixel(image, 63, 47), RED)


@pytest.mark.parametrize("format_", ["TIFF", "PPM", "ICO"])
def test_other_formats_are_refused(format_: str) -> None:
    with pytest.raises(Undecodable, match="not an image in one of the formats PNG, JPEG, WEBP, GIF, BMP"):
        decode(picture(format_), "auto")


def test_an_animation_is_its_first_frame() -> None:
    file = io.BytesIO()
    frames = [Pillow.new("RGB", (64, 64), color) for color in ("red", "blue")]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    assert pixel(decode(file.getvalue(), "auto")) == (255, 0, 0)


@pytest.mark.parametrize(
    ("size", "detail", "expected"),
    [
        ((640, 480), "auto", (640, 480)),
        ((640, 480), "low", (512, 384)),
        ((4000, 3000), "high", (1024, 768)),
        ((3000, 4000), "auto", (768, 1024)),
        ((4000, 400), "high", (2048, 205)),
        ((10, 8), "auto", (40, 32)),
    ],
)
def test_detail_bounds_the_size(size: tuple[int, int], detail: str, expected: tuple[int, int]) -> None:
    image = decode(picture(size=size), detail)  # type: ignore[arg-type]
    assert (image.width, image.height) == expected
    assert len(image.rgb) == image.width * image.height * 3


@pytest.mark.filterwarnings("ignore::UserWarning")  # as in the process that decodes
def test_notes_about_a_picture_do_not_decide_whether_it_is_read() -> None:
    """Of cameras and editors: EXIF that is broken, a workflow and a colour profile over a mebibyte."""
    long = PngImagePlugin.PngInfo()
    long.add_text("workflow", "x" * 3_000_000, zip=True)
    for format_, notes in (
        ("WEBP", {"exif": b"no TIFF at all"}),
        ("PNG", {"exif": b"no TIFF at all"}),
        ("JPEG", {"exif": b"Exif\0\0II*\0\x08\0\0\0\x05\0\x12\x01\x03\0"}),
        ("PNG", {"pnginfo": long}),
        ("PNG", {"icc_profile": bytes(3_000_000)}),
    ):
        file = picture(format_, **notes)
        assert near(pixel(decode(file, "auto"))[2:], (90,))
        made = images.decode_raster(file, RasterForm(0, 0, (640, 640), 8), MAX_PIXELS)
        assert near(pixel(made)[2:], (90,))


@pytest.mark.parametrize("orientation", range(10))
def test_every_orientation_is_pillow_s(orientation: int) -> None:
    plain = Pillow.effect_noise((80, 40), 80).convert("RGB")
    exif, file = Pillow.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    plain.save(file, "PNG", exif=exif)
    with Pillow.open(file) as opened:
        upright = ImageOps.exif_transpose(opened)
    for made in (
        decode(file.getvalue(), "auto"),
        images.decode_raster(file.getvalue(), RasterForm(0, 0, (80, 80), 8), MAX_PIXELS),
    ):
        assert (made.width, made.height, made.rgb) == (*upright.size, upright.tobytes())


@pytest.mark.parametrize(
    ("mode", "color", "expected"),
    [
        ("RGBA", (0, 0, 0, 0), (255, 255, 255)),
        ("RGBA", (10, 20, 30, 255), (10, 20, 30)),
        ("LA", (0, 0), (255, 255, 255)),
        ("L", 77, (77, 77, 77)),
        ("1", 1, (255, 255, 255)),
        ("I;16", 0x8000, (128, 128, 128)),
    ],
)
def test_all_modes_become_opaque_colour(mode: str, color: object, expected: tuple[int, ...]) -> None:
    assert near(pixel(decode(picture(mode=mode, color=color), "auto")), expected)


def test_cmyk() -> None:
    assert near(pixel(decode(picture("JPEG", mode="CMYK", color=(0, 0, 0, 0)), "auto")), (255, 255, 255))


def test_a_bomb_is_refused_by_its_header() -> None:
    with pytest.raises(Undecodable, match=f"8000 x 7000 pixels, more than {MAX_PIXELS:,}"):
        decode(png_of(8000, 7000), "low")
    with pytest.raises(Undecodable, match="pixels"):
        decode(png_of(2**31 - 1, 2**31 - 1), "low")


def test_a_strip_is_refused() -> None:
    decode(picture(size=(MAX_ASPECT, 1)), "auto")
    with pytest.raises(Undecodable, match=f"its aspect ratio is over {MAX_ASPECT}:1"):
        decode(picture(size=(MAX_ASPECT + 1, 1)), "auto")


def test_no_side_is_too_short_for_an_encoder() -> None:
    image = decode(picture(size=(1, 1)), "low")
    assert (image.width, image.height) == (MIN_SIDE, MIN_SIDE)


@pytest.mark.parametrize("format_", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_a_truncated_file_is_refused(format_: str) -> None:
    file = io.BytesIO()
    Pillow.effect_noise((64, 64), 80).convert("RGB").save(file, format_)
    whole = file.getvalue()
    with pytest.raises(Undecodable, match="broken|not an image"):
        decode(whole[: len(whole) * 2 // 3], "auto")


@pytest.mark.parametrize("data", [b"", b"<html>404</html>", b"\x89PNG\r\n\x1a\n", b"BM" + bytes(60)])
def test_what_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(Undecodable):
        decode(data, "auto")


def test_base64() -> None:
    text = base64.b64encode(b"some bytes")
    assert unpacked(text) == b"some bytes"
    assert unpacked(text[:8] + b"\n " + text[8:] + b"\n") == b"some bytes"
    for wrong in (b"c29tZSBieXRlcw", b"c29t!", b"\xff"):
        with pytest.raises(Undecodable, match="not valid base64"):
            unpacked(wrong)
