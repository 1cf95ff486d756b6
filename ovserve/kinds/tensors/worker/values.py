"""The values of a call as OpenVINO's tensors, and back. Numbers are not copied on the way in."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov

from ovserve.errors import InvalidArgument
from ovserve.kinds.tensors.spec import GivenTensor
from ovserve.kinds.tensors.worker.ports import Port

Buffer = bytes | bytearray | memoryview

_LENGTH = struct.Struct("<I")
# The library takes texts as an array whose elements have the length of the longest.
MAX_TEXT_BYTES = 256 << 20
STRING, BF16 = ov.Type.string, ov.Type.bf16


def input_tensor(port: Port, tensor: GivenTensor, blob: Buffer) -> ov.Tensor:
    """Return the tensor of an input. It refers to `blob`. Raises InvalidArgument."""
    if port.element_type == STRING:
        return _texts(port.info.name, blob, tensor.shape)
    if tensor.form == "image":
        return _image(port, tensor.shape, blob)
    if port.element_type == BF16:
        return ov.Tensor(np.frombuffer(blob, np.uint16).copy(), ov.Shape(list(tensor.shape)), BF16)
    return _shared(numbers(port, tensor, blob))


def numbers(port: Port, tensor: GivenTensor, blob: Buffer) -> np.ndarray[Any, Any]:
    """Return the array of an input. It refers to `blob`. Raises InvalidArgument for a number that the CPU
    device would replace."""
    array = np.frombuffer(blob, port.element_type.to_dtype()).reshape(tensor.shape)
    if port.narrow is not None and array.size:
        low, high = port.narrow
        if array.dtype.kind == "f":
            wrong = np.isfinite(array) & ((array < low) | (array > high))
        elif low <= array.min() and array.max() <= high:
            return array
        else:
            wrong = (array < low) | (array > high)
        if wrong.any():
            raise InvalidArgument(
                f"inputs: {port.info.name!r}: OpenVINO's CPU device takes {port.info.datatype} from {low} to "
                f"{high}, got {array[wrong][0]}",
                param="inputs",
            )
    return array


def _shared(array: np.ndarray[Any, Any]) -> ov.Tensor:
    if array.size and array.flags.writeable:
        return ov.Tensor(array, shared_memory=True)
    return ov.Tensor(array)  # small, or empty: the library takes only memory that may be written


def _texts(name: str, blob: Buffer, shape: Sequence[int]) -> ov.Tensor:
    texts = [bytes(text) for text in elements(blob)]
    for i, text in enumerate(texts):
        if text[-1:] == b"\0":
            raise InvalidArgument(
                f"inputs: {name!r}: element {i} ends with a NUL byte, which OpenVINO drops", param="inputs"
            )
    longest = max(map(len, texts), default=0)
    if longest * len(texts) > MAX_TEXT_BYTES:
        raise InvalidArgument(
            f"inputs: {name!r}: {len(texts)} texts of up to {longest} bytes are too much for one request",
            param="inputs",
        )
    tensor = ov.Tensor(STRING, ov.Shape(list(shape)))
    if texts:
        tensor.bytes_data = np.array(texts, dtype=f"S{max(1, longest)}").reshape(shape)
    return tensor


def elements(blob: Buffer) -> list[memoryview]:
    """Return the elements of BYTES: each has 4 bytes of length before it."""
    view, at, views = memoryview(blob), 0, []
    while at < len(view):
        (size,) = _LENGTH.unpack_from(view, at)
        views.append(view[at + 4 : at + 4 + size])
        at += 4 + size
    return views


def _image(port: Port, shape: Sequence[int], blob: Buffer) -> ov.Tensor:
    """Return pixels, N x H x W x C, in the layout and type of the input."""
    pixels = np.frombuffer(blob, np.uint8).reshape(shape)
    axes = ["NHWC".index(letter) for letter in port.info.layout]
    return ov.Tensor(np.ascontiguousarray(pixels.transpose(axes), dtype=port.element_type.to_dtype()))


def shape_of(tensor: ov.Tensor) -> tuple[int, ...]:
    """Return the shape. Reading an `ov.Shape` takes 14 us, because each element is a call; an array's 0.4."""
    if tensor.get_element_type() == STRING:
        return tuple(tensor.shape)  # its array would be made of all texts
    shape: tuple[int, ...] = tensor.data.shape
    return shape


def result(tensor: ov.Tensor) -> Buffer:
    """Return the raw bytes of an output, valid until its infer request runs again."""
    if not tensor.get_size():
        return b""  # the library ends the process (SIGFPE) when it is asked for the texts of none
    kind = tensor.get_element_type()
    if kind == STRING:
        texts = tensor.bytes_data.ravel().tolist()
        return b"".join(part for text in texts for part in (_LENGTH.pack(len(text)), text))
    if kind == BF16:
        return np.ascontiguousarray(tensor.data).tobytes()
    return np.ascontiguousarray(tensor.data).data.cast("B")


def _warm_up() -> None:
    """Call everything here once, on one thread, before calls arrive on several: when this is imported.

    The library's bindings (2026.4.1) make some tables at the first use, and two threads that do so at a time
    wait for each other forever: one has the table's lock and wants Python's, the other has Python's.
    """
    for kind in ("f32", "boolean", "f16"):
        array = np.zeros(1, getattr(ov.Type, kind).to_dtype())
        for tensor in (_shared(array), ov.Tensor(array)):
            result(tensor)
    result(_texts("", _LENGTH.pack(1) + b"a", (1,)))
    result(ov.Tensor(np.zeros(1, np.uint16), ov.Shape([1]), BF16))


_warm_up()
