"""Files to text: what is read, what is refused in which words, and that a bomb costs the file alone."""

from __future__ import annotations

import base64
import io
import subprocess
import sys

import pytest
from pypdf import PdfReader, PdfWriter

from ovserve.errors import InvalidArgument
from ovserve.llm.request import FileSource
from ovserve.sandbox.images.documents import MAX_CHARACTERS, text_of
from ovserve.sandbox.images.loader import MAX_FILES, READ, Bounds, Media, image_pool
from ovserve.sandbox.messages import Undecodable
from tests.sandbox.images.documents import pdf


def encrypted() -> bytes:
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf("secret"))))
    writer.encrypt("password", algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def source(
    data: bytes | str, name: str = "", param: str = "messages[0].content[0].file.file_data"
) -> FileSource:
    return FileSource("mark", data if isinstance(data, str) else base64.b64encode(data).decode(), param, name)


@pytest.mark.parametrize("packed", [True, False])
def test_pages_follow_one_another(packed: bool) -> None:
    assert text_of(pdf("One two.\nThree.", "Second page", packed=packed)) == "One two.\nThree.\n\nSecond page"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("Größe: 5 €\n".encode(), "Größe: 5 €\n"),
        (b"\xef\xbb\xbfwith a mark", "with a mark"),
        (b'{"a": 1}', '{"a": 1}'),
        (b"\n" * 10 + pdf("late sign"), "late sign"),
    ],
)
def test_texts(data: bytes, text: str) -> None:
    assert text_of(data) == text


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no text"),
        (b" \n", "no text"),
        (pdf(""), "no text; pages that are scanned"),
        (b"\xff\xfe\x00", "neither a PDF nor text in UTF-8"),
        (b"a\x00b", "neither a PDF nor text"),
        (b"\x89PNG\r\n\x1a\n\x00", "neither a PDF nor text"),
        (b"%PDF-1.4\nrubbish", "it is broken: "),
        (pdf("x")[:150], "it is broken: "),
        (encrypted(), "it is encrypted"),
        (b"x" * (MAX_CHARACTERS + 1), "more than 4,000,000 characters"),
    ],
)
def test_refusals(data: bytes, says: str) -> None:
    with pytest.raises(Undecodable, match=says):
        text_of(data)


def test_without_pypdf_it_says_what_is_missing() -> None:
    code = (
        "import sys; sys.modules['pypdf'] = None\n"
        "from ovserve.sandbox.images.documents import Undecodable, text_of\n"
        "assert text_of(b'plain') == 'plain'\n"
        "try: text_of(b'%PDF-1.4')\n"
        "except Undecodable as exc: print(exc)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=230, check=True
    )
    assert "the package pypdf (extra pdf) is not installed" in told.stdout


async def test_files_are_read_in_a_process_of_their_own() -> None:
    pool = image_pool()
    media = Media(pool=pool)
    url = "data:application/pdf;base64," + base64.b64encode(pdf("From a URL.")).decode()
    try:
        assert await media.read([source(pdf("From a PDF.")), source(b"plain"), source(url)]) == (
            "From a PDF.",
            "plain",
            "From a URL.",
        )
        assert len(pool.pids) == 1
        for bad, says in ((source("@@@"), "not valid base64"), (source(b"\x00"), "neither a PDF nor text")):
            with pytest.raises(InvalidArgument, match=says) as caught:
                await media.read([bad])
            assert caught.value.param == "messages[0].content[0].file.file_data"
    finally:
        await media.stop()


async def test_bounds() -> None:
    media = Media(bounds=Bounds(bytes=100))
    with pytest.raises(InvalidArgument, match="larger than 100 bytes"):
        await media.read([source(b"x" * 200)])
    with pytest.raises(
        InvalidArgument, match=f"17 files are too many; a request may have {MAX_FILES}"
    ) as caught:
        await media.read([source(b"x", param=f"p{i}") for i in range(17)])
    assert caught.value.param == "p16"
    await media.stop()


async def test_a_pdf_that_takes_too_long_or_too_much_costs_itself_alone() -> None:
    """Pages are one object again and again: 10 MB of text operators each, out of 10 kB."""
    bomb = pdf("word " * 2_000_000, packed=True)
    data = base64.b64encode(bomb)
    assert len(data) < 100_000
    slow = image_pool(seconds=0.3)
    small = image_pool(memory=200 << 20)
    try:
        for pool in (slow, small):
            with pytest.raises(Undecodable):
                await pool.decode(READ, data, returns=str)
        assert await small.decode(READ, base64.b64encode(pdf("fine")), returns=str) == "fine"
    finally:
        await slow.stop()
        await small.stop()
