"""The text of files, and the pixels of pictures. A PDF needs the extra `pdf`. Runs only in an image process,
see `loader.py`.

The type of a file is detected from its beginning, because media types and names are claims of the client.

Size and aspect ratio of a picture are checked in the file's header, before anything is decoded. The result is
upright (EXIF) and opaque (white shows through). Its size follows `detail`, by OpenAI's rule: `low` fits into
512 x 512. The others have a longer side of at most 2048 pixels and a shorter one of at most 768. An
animation yields its first frame.
"""

from __future__ import annotations

import binascii
import codecs
import io
import os
import struct
import warnings
from collections.abc import Callable
from typing import TypeVar

from PIL import Image as Pillow
from PIL import ImageOps, PngImagePlugin, UnidentifiedImageError

from ovserve.llm.audio import base64_bytes
from ovserve.llm.images import DETAILS, Detail, Image, PixelForm, Pixels, RasterForm
from ovserve.sandbox.messages import Undecodable

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
BOUNDS: dict[Detail, tuple[int, int]] = dict.fromkeys(DETAILS, (2048, 768)) | {"low": (512, 512)}
# Vision encoders scale by the shorter side, so a thin strip becomes gigabytes there. Some need 28 pixels.
MAX_ASPECT = 50
MIN_SIDE = 32

DECODER_NICENESS = 10  # below the engine

Pillow.MAX_IMAGE_PIXELS = None  # the operator sets the limit, not the library
# Colour profiles and notes of programs that draw have more than the library's 1 MiB.
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY

T = TypeVar("T")

_ORIENTATION_TAG = 0x0112
_Turn = Pillow.Transpose
_TURNS = {
    2: _Turn.FLIP_LEFT_RIGHT, 3: _Turn.ROTATE_180, 4: _Turn.FLIP_TOP_BOTTOM, 5: _Turn.TRANSPOSE,
    6: _Turn.ROTATE_270, 7: _Turn.TRANSVERSE, 8: _Turn.ROTATE_90,
}  # fmt: skip


def initialize() -> None:
    os.nice(DECODER_NICENESS)
    warnings.simplefilter("ignore")  # oddities of a file; real errors are raised


def unpacked(text: bytes) -> bytes:
    """Return the bytes of base64 text. Raises Undecodable."""
    try:
        return base64_bytes(text)
    except binascii.Error:
        raise Undecodable("it is not valid base64") from None


def decode(data: bytes, detail: Detail, max_pixels: int, base64: bool = False) -> Image:
    """`data` is a file's content, or its base64 form. Raises Undecodable."""
    content = unpacked(data) if base64 else data
    return _opened(content, lambda file: _decode(file, detail, max_pixels))


def decode_pixels(data: bytes, form: PixelForm, max_pixels: int) -> Pixels:
    """Decode an image for a plain model, at the size that the model takes, without regard to its aspect.

    Raises Undecodable.
    """
    return _opened(data, lambda file: _pixels(file, form, max_pixels))


def decode_raster(data: bytes, form: RasterForm, max_pixels: int, base64: bool = False) -> Image:
    """Decode an image to edit, or a mask: a file's content, or its base64 form. Raises Undecodable."""
    content = unpacked(data) if base64 else data
    return _opened(content, lambda file: _raster(file, form, max_pixels))


def _opened(data: bytes, read: Callable[[Pillow.Image], T]) -> T:
    try:
        with Pillow.open(io.BytesIO(data), formats=FORMATS) as file:
            return read(file)
    except Undecodable:
        raise
    except UnidentifiedImageError:
        raise Undecodable(f"it is not an image in one of the formats {', '.join(FORMATS)}") from None
    except MemoryError:
        raise Undecodable("decoding it needs too much memory") from None
    except Exception as exc:  # noqa: BLE001  decoders raise whatever a broken file makes them
        raise Undecodable(f"it is broken: {exc or type(exc).__name__}") from None


def _pixels(file: Pillow.Image, form: PixelForm, max_pixels: int) -> Pixels:
    """Unlike `_decode` it keeps the image as it is stored, as OVMS does: not turned by EXIF."""
    _check_size(file, max_pixels)
    size = _within(form.width, file.width), _within(form.height, file.height)
    image = _opaque(file)
    if form.channels == 1:
        image = image.convert("L")
    if image.size != size:
        image = image.resize(size, Pillow.Resampling.BILINEAR)
    if form.channels == 3 and form.bgr:
        red, green, blue = image.split()
        image = Pillow.merge("RGB", (blue, green, red))
    return Pixels(*size, image.tobytes())


def _within(bounds: tuple[int, int], size: int) -> int:
    low, high = bounds
    return max(low, size if high < 0 else min(size, high))


def _raster(file: Pillow.Image, form: RasterForm, max_pixels: int) -> Image:
    _check_size(file, max_pixels)
    turn = _turn_of(file)
    upright = file if turn is None else file.transpose(turn)
    image = _mask(upright) if form.mask else _opaque(upright)
    size = (form.width, form.height) if form.width else _fitted(image.size, form)
    if image.size != size:
        filter_ = Pillow.Resampling.NEAREST if form.mask else Pillow.Resampling.BICUBIC
        image = image.resize(size, filter_)
    return Image(image.width, image.height, image.convert("RGB").tobytes())


def _mask(image: Pillow.Image) -> Pillow.Image:
    """Return white where the image is repainted: where it is transparent, as OpenAI's clients mean it, or
    where it is white if nothing is, as OVMS's do."""
    if image.has_transparency_data:
        alpha = image.convert("RGBA").getchannel("A")
        if alpha.getextrema()[0] < 255:  # type: ignore[operator]  # of one channel it is a pair of numbers
            return ImageOps.invert(alpha)
    return _opaque(image).convert("L")


def _fitted(size: tuple[int, int], form: RasterForm) -> tuple[int, int]:
    """Return the size within the bounds, its aspect kept as far as multiples allow."""
    scale = min(1.0, form.most[0] / size[0], form.most[1] / size[1])
    least, multiple = form.multiple, form.multiple
    width, height = (max(least, int(side * scale) // multiple * multiple) for side in size)
    return width, height


def _check_size(file: Pillow.Image, max_pixels: int) -> None:
    width, height = file.size
    if width * height > max_pixels:
        raise Undecodable(f"it has {width} x {height} pixels, more than {max_pixels:,} in all")


def _decode(file: Pillow.Image, detail: Detail, max_pixels: int) -> Image:
    _check_size(file, max_pixels)
    width, height = file.size
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise Undecodable(f"it has {width} x {height} pixels; its aspect ratio is over {MAX_ASPECT}:1")
    turn = _turn_of(file)
    size = _bounded(width, height, detail)
    file.draft("RGB", size)  # a large JPEG is decoded smaller at once
    image = _opaque(file).resize(size, Pillow.Resampling.BICUBIC, reducing_gap=3.0)
    image = image if turn is None else image.transpose(turn)
    return Image(image.width, image.height, image.tobytes())


def _turn_of(file: Pillow.Image) -> Pillow.Transpose | None:
    """Return how to make it upright. Notes of the camera that are broken do not make the picture so."""
    try:
        return _TURNS.get(file.getexif().get(_ORIENTATION_TAG, 0))
    except (SyntaxError, ValueError, TypeError, LookupError, OSError, struct.error):
        return None


def _bounded(width: int, height: int, detail: Detail) -> tuple[int, int]:
    longest, shortest = BOUNDS[detail]
    scale = min(1.0, longest / max(width, height), shortest / min(width, height))
    scale = max(scale, MIN_SIDE / min(width, height))
    return max(1, round(width * scale)), max(1, round(height * scale))


def _opaque(file: Pillow.Image) -> Pillow.Image:
    if file.mode.startswith("I"):  # 16-bit grey, which a plain conversion clips at 255
        return file.convert("I").point(lambda value: value / 256).convert("L").convert("RGB")
    if file.has_transparency_data:
        coloured = file.convert("RGBA")
        return Pillow.alpha_composite(Pillow.new("RGBA", coloured.size, "white"), coloured).convert("RGB")
    return file.convert("RGB")


MAX_CHARACTERS = 4_000_000  # more than any current model reads
PDF = b"%PDF-"
PDF_HEAD_BYTES = 1024  # bytes in which a PDF's signature may stand
NO_PYPDF = "this server reads no PDFs: the package pypdf (extra pdf) is not installed"


def read(base64: bytes) -> str:
    """Raises Undecodable."""
    return text_of(unpacked(base64))


def text_of(data: bytes) -> str:
    """Raises Undecodable."""
    text = _pdf(data) if PDF in data[:PDF_HEAD_BYTES] else _plain(data)
    if len(text) > MAX_CHARACTERS:
        raise Undecodable(f"it has more than {MAX_CHARACTERS:,} characters of text")
    if not text.strip():
        raise Undecodable("it has no text; pages that are scanned can be sent as images")
    return text


def _plain(data: bytes) -> str:
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise Undecodable("it is neither a PDF nor text in UTF-8")
    return text


def _pdf(data: bytes) -> str:
    try:
        from pypdf import PdfReader
        from pypdf.errors import DependencyError, FileNotDecryptedError
    except ImportError:
        raise Undecodable(NO_PYPDF) from None
    pages: list[str] = []
    length = 0
    try:
        for page in PdfReader(io.BytesIO(data)).pages:
            pages.append(page.extract_text().strip())
            length += len(pages[-1])
            if length > MAX_CHARACTERS:
                break
    except (FileNotDecryptedError, DependencyError):
        raise Undecodable("it is encrypted") from None
    except MemoryError:
        raise Undecodable("reading it needs too much memory") from None
    except Exception as exc:  # noqa: BLE001  a broken file makes pypdf raise whatever there is
        raise Undecodable(f"it is broken: {exc or type(exc).__name__}") from None
    return "\n\n".join(filter(None, pages))
