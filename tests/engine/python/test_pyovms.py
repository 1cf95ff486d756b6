"""`pyovms.Tensor`: what a handler may read from it and make of it."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from ovserve.kinds.python.worker.pyovms import CODES, Tensor, raw, tensor_of

TYPES = [(name, np.dtype(code)) for name, code in CODES.items()]


@pytest.mark.parametrize(("datatype", "dtype"), TYPES)
def test_a_tensor_of_an_array(datatype: str, dtype: np.dtype) -> None:  # type: ignore[type-arg]
    array = np.arange(6).astype(dtype).reshape(2, 3)
    tensor = Tensor("name", array)
    assert (tensor.name, tensor.datatype, tensor.shape, tensor.size) == (
        "name",
        datatype,
        (2, 3),
        array.nbytes,
    )
    assert np.array_equal(np.array(tensor), array)
    assert np.array_equal(np.frombuffer(tensor, dtype), array.ravel())
    assert bytes(tensor) == array.tobytes() == bytes(raw(tensor)) == tensor.data.tobytes()
    assert tensor.data.readonly
    assert tensor.ref_obj is array
    assert tensor.ptr == array.__array_interface__["data"][0]
    assert np.array(tensor).dtype == dtype
    again = tensor_of("name", datatype, (2, 3), memoryview(array.tobytes()))
    assert (again.data.format, again.shape, again.datatype) == (CODES[datatype], (2, 3), datatype)


def test_integers_of_eight_bytes_are_int64() -> None:
    assert Tensor("a", np.array([1])).datatype == "INT64"
    assert Tensor("a", np.array([1], np.uint64)).datatype == "UINT64"


def test_what_its_maker_gives_counts() -> None:
    tensor = Tensor("a", b"abc", shape=[7, 7], datatype="my word")
    assert (tensor.shape, tensor.datatype, tensor.size, bytes(tensor)) == ((7, 7), "my word", 3, b"abc")
    assert Tensor("a", b"abc").datatype == "UINT8"
    assert Tensor("a", b"abc").shape == (3,)
    texts = Tensor("a", np.array("my text"))
    assert texts.size == 28
    assert texts.shape == ()
    assert texts.datatype.endswith("w"), "an unknown format is the datatype"


def test_values_without_elements_or_dimensions() -> None:
    assert Tensor("a", np.float32(5)).shape == ()
    assert struct.unpack("f", Tensor("a", np.float32(5))) == (5.0,)
    empty = Tensor("a", np.zeros((0, 3), np.float32))
    assert (empty.shape, empty.size, bytes(empty), bytes(raw(empty))) == ((0, 3), 0, b"", b"")


def test_the_memory_of_an_array_that_is_not_in_order_is_copied() -> None:
    turned = np.arange(6, dtype=np.int32).reshape(2, 3).T
    tensor = Tensor("a", turned)
    assert tensor.shape == (3, 2)
    assert np.frombuffer(tensor, np.int32).tolist() == [0, 3, 1, 4, 2, 5]
    swapped = Tensor("a", np.array([1, 2], ">i4"))
    assert (swapped.datatype, bytes(swapped)) == ("INT32", b"\1\0\0\0\2\0\0\0")
    assert np.frombuffer(Tensor("a", np.arange(4, dtype=np.uint8)[::-1]), np.uint8).tolist() == [3, 2, 1, 0]


def test_it_is_read_only_and_compares_by_identity() -> None:
    one, two = Tensor("a", b"x"), Tensor("a", b"x")
    assert one
    assert one in [two, one]
    assert one != two
    assert len({one: 1, two: 2}) == 2
    assert str(one) == "Tensor('a', shape=(1,), datatype='UINT8')"
    with pytest.raises(AttributeError):
        one.name = "b"  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        one[0] = 1
    array = np.arange(3)
    Tensor("a", array)
    array[0] = 5  # its maker's own stays as it was


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((1, b""), "name: expected str"),
        (("a", [1, 2]), "bytes-like object is required"),
        (("a", "text"), "bytes-like object is required"),
        (("a", np.array([None])), "holds references"),
        (("a", b"", ["x"]), "shape: expected whole numbers"),
        (("a", b"", [1], 5), "datatype: expected str"),
    ],
)
def test_what_it_cannot_be_made_of(arguments: tuple[object, ...], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        Tensor(*arguments)  # type: ignore[arg-type]
