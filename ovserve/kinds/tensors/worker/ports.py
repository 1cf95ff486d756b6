"""The inputs and outputs of a model as clients see them (names, datatypes, shapes, layouts), and the values
of a call as OpenVINO's tensors, and back. Numbers are not copied on the way in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov

from ovserve.errors import InvalidArgument, LoadError
from ovserve.kinds.tensors.spec import KSERVE_TYPES, UNBOUNDED, GivenTensor, Mapping, TensorInfo

MOST_FLOAT = 3.4028234663852886e38  # of 32 bits
COLOURS = (1, 3)  # channels of an image


@dataclass(eq=False)
class Port:
    index: int
    info: TensorInfo
    element_type: Any
    shape: Any  # ov.PartialShape
    narrow: tuple[float, float] | None = None  # the least and the largest number that the device keeps


# The CPU device computes these types in 32 bits. It wraps whole numbers, and makes others the largest float.
NARROW: MappingOf[str, tuple[float, float]] = {
    "INT64": (-(2**31), 2**31 - 1),
    "UINT64": (0, 2**31 - 1),
    "FP64": (-MOST_FLOAT, MOST_FLOAT),
}


def narrow(typed_ports: Iterable[Port]) -> None:
    """Note what the CPU device keeps of each input's numbers."""
    for port in typed_ports:
        port.narrow = NARROW.get(port.info.datatype)


def ports(model: ov.Model, mapping: Mapping) -> tuple[list[Port], list[Port]]:
    """Return inputs and outputs. Raises LoadError for a mapping that names tensors the model lacks."""
    inputs = _all(model.inputs, mapping.inputs, "inputs", "in")
    outputs = _all(model.outputs, mapping.outputs, "outputs", "out")
    return inputs, outputs


def _all(nodes: list[Any], aliases: MappingOf[str, str], field: str, unnamed: str) -> list[Port]:
    names = {name for port in nodes for name in port.get_names()}
    for name in aliases:
        if name not in names:
            raise LoadError(
                f"mapping_config.json: {field}: {name!r} is not a tensor of the model; known: "
                f"{', '.join(sorted(names)) or 'none'}"
            )
    return [_port(i, port, aliases, f"{unnamed}_{i}") for i, port in enumerate(nodes)]


def _port(index: int, port: Any, aliases: MappingOf[str, str], unnamed: str) -> Port:
    names = sorted(port.get_names())
    if alias := next((aliases[name] for name in names if name in aliases), ""):
        names = [alias]  # the old names are gone, as in OVMS
    if not names:
        names = [unnamed]
    shape = port.get_partial_shape()
    kind = port.get_element_type()
    info = TensorInfo(
        names[0],
        KSERVE_TYPES.get(kind.get_type_name(), ""),
        _dims(shape),
        tuple(names),
        _layout(port, shape),
    )
    return Port(index, info, kind, shape)


def _dims(shape: Any) -> tuple[tuple[int, int], ...] | None:
    if shape.rank.is_dynamic:
        return None
    return tuple((d.get_min_length(), UNBOUNDED if _open(d) else d.get_max_length()) for d in shape)


def _open(dim: Any) -> bool:
    return bool(dim.is_dynamic) and dim.get_max_length() in (-1, 2**63 - 1)


def _layout(port: Any, shape: Any) -> str:
    """Return the layout that the model states; of an image without one, that which its channels suggest."""
    node = port.get_node()
    stated = str(node.layout) if node.get_type_name() in ("Parameter", "Result") else ""
    text = stated.strip("[]").replace(",", "")
    if text and "." not in text and "?" not in text:
        return text
    if shape.rank.is_dynamic or shape.rank.get_length() != 4:
        return ""
    if shape[1].is_static and shape[1].get_length() in COLOURS:
        return "NCHW"
    return "NHWC" if shape[3].is_static and shape[3].get_length() in COLOURS else ""


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
