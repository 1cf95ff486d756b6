"""Images of a request end to end: sources in, pixels out, through real decoder processes."""

from __future__ import annotations

import asyncio
import base64
import gc
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from ovserve.errors import InvalidArgument, Unavailable
from ovserve.llm.images import Detail, Image, ImageSource
from ovserve.sandbox.images.loader import DECODE, Bounds, Media, image_pool
from ovserve.sandbox.images.policy import parse_policy
from ovserve.sandbox.messages import Undecodable
from tests.sandbox.images.conftest import picture

PIXELS = Bounds().pixels


def data_url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def source(url: str, detail: Detail = "auto") -> ImageSource:
    return ImageSource(url, "messages[0].content[1].image_url.url", detail)


@pytest.fixture
async def media(tmp_path: Path) -> AsyncIterator[Media]:
    media = Media(parse_policy("", str(tmp_path)), bounds=Bounds(images=3, bytes=100_000))
    yield media
    await media.stop()


async def test_every_kind_of_source(media: Media, tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(picture(size=(80, 60)))
    bare = "base64," + base64.b64encode(picture(size=(70, 60))).decode()
    sources = [source(data_url(picture())), source(f"file://{tmp_path}/cat.png"), source(bare)]
    assert [(i.width, i.height) for i in await media.load(sources)] == [(64, 48), (80, 60), (70, 60)]
    assert await media.load([]) == ()


async def test_detail_is_honoured(media: Media) -> None:
    large = data_url(picture(size=(2000, 1000)))
    low, auto = await media.load([source(large, "low"), source(large)])
    assert (low.width, auto.width) == (512, 1536)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("data:image/png,abc", "expected a data URL with base64"),
        ("data:image/png;base64,@@@", "not valid base64"),
        ("data:image/png;base64,aGVsbG8=", "not an image in one of the formats"),
        ("data:image/png;base64," + "A" * 140_000, "larger than 100000 bytes"),
        ("https://example.org/cat.png", "URLs are not allowed"),
        ("ftp://example.org/cat.png", "expected a data, http or https URL"),
        ("gopher://example.org/", "expected a data, http or https URL"),
        ("/etc/passwd", "outside of the allowed directory"),
    ],
)
async def test_refusals_name_the_field(media: Media, url: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why) as raised:
        await media.load([source(url)])
    assert raised.value.param == "messages[0].content[1].image_url.url"
    assert raised.value.message.startswith(raised.value.param)
    assert len(raised.value.message) < 200


async def test_count_bound(media: Media) -> None:
    with pytest.raises(InvalidArgument, match="4 images are too many; a request may have 3"):
        await media.load([source(data_url(picture()))] * 4)


async def test_held_memory_is_bounded_and_given_back() -> None:
    media = Media(max_held=10_000)
    first = await media.load([source(data_url(picture(size=(64, 64))))])
    assert media.held == 64 * 64 * 3
    with pytest.raises(Unavailable, match="holds too many images"):
        await media.load([source(data_url(picture()))])
    del first
    gc.collect()
    assert media.held == 0
    await media.load([source(data_url(picture()))])
    await media.stop()


@pytest.fixture(scope="module")
def large() -> bytes:
    """49 million pixels, the most that are decoded."""
    return picture("GIF", size=(7000, 7000), mode="P", color=1)


async def test_a_slow_picture_is_ended_and_the_next_is_decoded(large: bytes) -> None:
    pool = image_pool(seconds=0.2)
    with pytest.raises(Undecodable, match="it took more than 0.2 s to decode"):
        await pool.decode(DECODE, large, "high", PIXELS, returns=Image)
    for _ in range(50):  # a busy machine may take as long for a small one, the start of its process included
        with suppress(Undecodable):
            assert await pool.decode(DECODE, picture(), "auto", PIXELS, returns=Image)
            break
    else:
        pytest.fail("no picture was decoded")
    await pool.stop()


async def test_the_loop_runs_on_while_a_picture_is_decoded(media: Media) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    for _ in range(5):  # this process may not run meanwhile on a busy machine
        turns = 0
        await media.load([source(data_url(picture("PNG", size=(2000, 1500))))])
        if turns > 100:
            break
    counting.cancel()
    assert turns > 100


async def test_a_bomb_that_needs_too_much_memory_is_refused(large: bytes) -> None:
    pool = image_pool(memory=220 << 20)
    with pytest.raises(Undecodable):
        await pool.decode(DECODE, large, "auto", PIXELS, returns=Image)
    await pool.stop()
