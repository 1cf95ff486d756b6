"""Tensors to bytes and back, by values and by arrays; and what is no tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovserve.api.kserve import Tensor
from ovserve.api.kserve.tensor import received
from ovserve.errors import InvalidArgument

VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False],
    "UINT8": [0, 255],
    "UINT16": [1, 65535],
    "UINT32": [1, 2**32 - 1],
    "UINT64": [1, 2**64 - 1],
    "INT8": [-128, 127],
    "INT16": [-1, 2],
    "INT32": [-1, 2],
    "INT64": [-(2**63), 2],
    "FP16": [0.5, -2.0],
    "FP32": [0.5, -2.0],
    "FP64": [0.1, -2.0],
    "BYTES": [b"", b"\x00text"],
}


@pytest.mark.parametrize("datatype", VALUES)
def test_values_and_arrays_come_back(datatype: str) -> None:
    tensor = Tensor.of(datatype, (2, 1), VALUES[datatype])
    assert tensor.values == VALUES[datatype]
    array = tensor.array()
    assert array.shape == (2, 1)
    assert array.ravel().tolist() == VALUES[datatype]
    assert Tensor.of_array(array) == tensor


def test_a_foreign_byte_order_is_turned() -> None:
    assert Tensor.of_array(np.array([1], dtype=">u2")).data == b"\x01\x00"


def test_bf16_has_bytes_alone() -> None:
    tensor = Tensor("BF16", (1,), b"ab")
    with pytest.raises(InvalidArgument, match="binary form"):
        _ = tensor.values
    with pytest.raises(TypeError, match="BF16"):
        tensor.array()


def test_nothing_is_a_tensor_too() -> None:
    assert Tensor.of("FP32", (0, 3), []).array().shape == (0, 3)
    assert Tensor.of("FP32", (), [1.0]).array().shape == ()


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "text"),
    [
        ("FP32", (2,), b"1234", "data: FP32 of shape [2] takes 8 bytes, got 4"),
        ("BYTES", (2,), b"\x01\x00\x00\x00a", "takes 2 elements, got 1"),
        ("BYTES", (1,), b"\x05\x00\x00\x00a", "goes past the end"),
        ("BYTES", (1,), b"\x05\x00", "goes past the end"),
        ("FP32", (2**62, 2**62), b"", "takes"),
        ("FP32", (-1,), b"", "shape: expected 0 or more"),
        ("UINT8", (0, 2**59, 4), b"", "shape: expected a product of at most 1152921504606846975 without"),
        ("BYTES", (2**62, 0), b"", "shape: expected a product of at most 1152921504606846975 without"),
        ("float", (1,), b"1234", "datatype: expected one of"),
    ],
)
def test_what_is_no_tensor(datatype: str, shape: tuple[int, ...], data: bytes, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Tensor(datatype, shape, data)
    assert text in str(caught.value)


@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "any word"])
@pytest.mark.parametrize("values", [b"", b"1234"])
def test_a_shape_of_many_or_huge_dimensions_is_not_multiplied(datatype: str, values: bytes) -> None:
    for size in (1, 2**62):
        with pytest.raises(InvalidArgument, match="^shape: expected at most 64 dimensions, got 100000$"):
            received(datatype, (size,) * 100_000, values)
    with pytest.raises(InvalidArgument, match="^shape: expected at most 9223372036854775807 in each dim"):
        received(datatype, (10**4000, 10**4000), values)


def test_the_largest_shape_has_a_number_of_elements_that_can_be_shown() -> None:
    with pytest.raises(InvalidArgument, match=r"^data: FP32 of shape .* takes \d+ bytes, got 4$"):
        Tensor("FP32", (2**63 - 1,) * 64, b"1234")
