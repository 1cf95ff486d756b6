"""A process that decodes images and files: `python -m ovserve.sandbox.images.worker FD SECONDS BYTES`.

It handles one request at a time, within SECONDS and BYTES (`sandbox/base.py`). Its priority is below the
engine's.

Files become text. A PDF needs the extra `pdf`.

The type of a file is detected from its beginning, because media types and names are claims of the client.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
import warnings

from ovserve.sandbox.base import answer_all
from ovserve.sandbox.images.messages import (
    DecodedImage,
    DecodedPixels,
    DecodePixels,
    DecodeRaster,
    DecodeResult,
    Question,
    Read,
    Text,
    Undecodable,
)
from ovserve.sandbox.images.picture import PictureError, decode, decode_pixels, decode_raster, unpacked

MAX_CHARACTERS = 4_000_000  # more than any current model reads
PDF = b"%PDF-"
HEAD = 1024  # bytes in which a PDF's signature may stand
NO_PYPDF = "this server reads no PDFs: the package pypdf (extra pdf) is not installed"


class DocumentError(ValueError):
    """The file has no text, or none that can be read; the text is for the client."""


def text_of(data: bytes) -> str:
    """Raises DocumentError."""
    text = _pdf(data) if PDF in data[:HEAD] else _plain(data)
    if len(text) > MAX_CHARACTERS:
        raise DocumentError(f"it has more than {MAX_CHARACTERS:,} characters of text")
    if not text.strip():
        raise DocumentError("it has no text; pages that are scanned can be sent as images")
    return text


def _plain(data: bytes) -> str:
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise DocumentError("it is neither a PDF nor text in UTF-8")
    return text


def _pdf(data: bytes) -> str:
    try:
        from pypdf import PdfReader
        from pypdf.errors import DependencyError, FileNotDecryptedError
    except ImportError:
        raise DocumentError(NO_PYPDF) from None
    pages: list[str] = []
    length = 0
    try:
        for page in PdfReader(io.BytesIO(data)).pages:
            pages.append(page.extract_text().strip())
            length += len(pages[-1])
            if length > MAX_CHARACTERS:
                break
    except (FileNotDecryptedError, DependencyError):
        raise DocumentError("it is encrypted") from None
    except MemoryError:
        raise DocumentError("reading it needs too much memory") from None
    except Exception as exc:  # noqa: BLE001  a broken file makes pypdf raise whatever there is
        raise DocumentError(f"it is broken: {exc or type(exc).__name__}") from None
    return "\n\n".join(filter(None, pages))


NICENESS = 10


def answer(question: Question) -> DecodeResult:
    try:
        if isinstance(question, Read):
            return Text(text_of(unpacked(question.data)))
        if isinstance(question, DecodePixels):
            return DecodedPixels(decode_pixels(question.data, question.form, question.max_pixels))
        data = unpacked(question.data) if question.base64 else question.data
        if isinstance(question, DecodeRaster):
            return DecodedImage(decode_raster(data, question.form, question.max_pixels))
        return DecodedImage(decode(data, question.detail, question.max_pixels))
    except (PictureError, DocumentError) as error:
        return Undecodable(str(error))
    except MemoryError:
        return Undecodable("decoding it needs too much memory")


def main(argv: list[str]) -> int:
    os.nice(NICENESS)
    warnings.simplefilter("ignore")  # oddities of a file; real errors are raised
    return answer_all(argv, Question, lambda question: [answer(question)], "image process")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
