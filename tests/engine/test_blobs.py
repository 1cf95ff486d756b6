"""Large values between server and engine: segments that are used again, and what happens when none is left."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ovserve.engine.protocol.blobs import FRAME_BYTES, INLINE_BYTES, KEPT_BYTES, Segments, SharedBlob

Ends = tuple[Segments, Segments]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """The two sides of one connection."""
    name = f"test{os.getpid()}"
    sender, receiver = Segments(os.getpid(), name), Segments(os.getpid(), name)
    yield sender, receiver
    sender.clear()
    assert not list(sender._directory.glob(sender.stem + "*"))


def test_a_segment_is_used_again_once_its_value_was_read(ends: Ends) -> None:
    sender, receiver = ends
    first = sender.pack(b"a" * 100_000)
    assert isinstance(first, SharedBlob)
    assert bytes(receiver.unpack(first)) == b"a" * 100_000
    second = sender.pack(b"b" * 90_000)
    assert isinstance(second, SharedBlob)
    assert second.name == first.name, "the receiver has copied the value"
    assert receiver.unpack(second) == b"b" * 90_000


def test_a_value_read_in_place_stays_until_it_is_freed(ends: Ends) -> None:
    sender, receiver = ends
    first = sender.pack(b"a" * 100_000)
    view = receiver.unpack(first, in_place=True)
    second = sender.pack(b"b" * 100_000)
    assert isinstance(first, SharedBlob)
    assert isinstance(second, SharedBlob)
    assert second.name != first.name
    assert bytes(view) == b"a" * 100_000
    receiver.free([first])
    third = sender.pack(b"c" * 100_000)
    assert isinstance(third, SharedBlob)
    assert third.name == first.name


def test_values_without_a_segment_take_the_frame_or_one_of_their_own(ends: Ends) -> None:
    sender, receiver = ends
    held = [sender.pack(bytes(8 << 20)) for _ in range(4)]
    kept = [blob for blob in held if isinstance(blob, SharedBlob) and blob.reusable]
    assert sum(blob.size for blob in kept) <= KEPT_BYTES
    assert len(kept) < len(held), "not all of them have a place among those that are kept"
    while isinstance(blob := sender.pack(bytes(FRAME_BYTES)), SharedBlob):
        assert blob.reusable
    assert receiver.unpack(blob) == bytes(FRAME_BYTES)
    own = sender.pack(b"x" * (FRAME_BYTES + 1))
    assert isinstance(own, SharedBlob)
    assert not own.reusable
    assert receiver.unpack(own) == b"x" * (FRAME_BYTES + 1)


@pytest.mark.parametrize("size", [0, 1, INLINE_BYTES])
def test_small_values_stay_in_the_frame(ends: Ends, size: int) -> None:
    blob = ends[0].pack(memoryview(b"y" * size))
    assert blob == b"y" * size


def test_a_large_value_does_not_occupy_a_much_larger_segment(ends: Ends) -> None:
    sender, receiver = ends
    large = sender.pack(bytes(8 << 20))
    receiver.free([large])
    small = sender.pack(bytes(INLINE_BYTES + 1))
    assert isinstance(large, SharedBlob)
    assert isinstance(small, SharedBlob)
    assert small.name != large.name
