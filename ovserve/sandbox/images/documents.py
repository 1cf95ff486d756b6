"""The text of files. A PDF needs the extra `pdf`. Runs only in an image process, see `loader.py`.

The type of a file is detected from its beginning, because media types and names are claims of the client.
"""

from __future__ import annotations

import codecs
import io

from ovserve.sandbox.images.picture import unpacked
from ovserve.sandbox.messages import Undecodable

MAX_CHARACTERS = 4_000_000  # more than any current model reads
PDF = b"%PDF-"
HEAD = 1024  # bytes in which a PDF's signature may stand
NO_PYPDF = "this server reads no PDFs: the package pypdf (extra pdf) is not installed"


def read(base64: bytes) -> str:
    """Raises Undecodable."""
    return text_of(unpacked(base64))


def text_of(data: bytes) -> str:
    """Raises Undecodable."""
    text = _pdf(data) if PDF in data[:HEAD] else _plain(data)
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
