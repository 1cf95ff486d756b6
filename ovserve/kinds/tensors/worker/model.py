"""Compiles a plain model by its options: read, preprocess, reshape, compile.

The texts of OVMS's options `shape`, `batch_size` and `layout`, as OpenVINO's types.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from ovserve.engine.host.cpu import device_properties
from ovserve.errors import InvalidArgument, LoadError, sentences_of
from ovserve.kinds.tensors.spec import (
    KSERVE_TYPES,
    UNBOUNDED_SIZE,
    GivenTensor,
    Mapping,
    TensorInfo,
    TensorSpec,
    model_file,
    read_mapping,
)

AUTO = "auto"
_LAYOUT = re.compile(r"(?=.*N|\.{0,3})[A-Z?.,\[\]]+")


def dimension(text: str, field: str) -> ov.Dimension:
    """Return the dimension of `5`, `-1`, `1:8` or `auto`, which is dynamic. Raises LoadError."""
    text = text.strip()
    low, colon, high = text.partition(":")
    try:
        if text.lower() == AUTO:
            return ov.Dimension(-1)
        if not colon:
            size = int(text)
            if size < -1:
                raise ValueError
            return ov.Dimension(size)
        bounds = int(low), int(high)
        if not 0 <= bounds[0] <= bounds[1]:
            raise ValueError
        return ov.Dimension(*bounds)
    except ValueError:
        expected = "a number, -1 for any, a range such as 1:8, or auto"
        raise LoadError(f"expected {expected}, got {text!r}", field=field) from None


def partial_shape(text: str, own: Any) -> ov.PartialShape:
    """Return the shape of `(1,3,200:500,-1)` or `auto`, every dimension dynamic. Raises LoadError."""
    if text.strip().lower() == AUTO:
        if own.rank.is_dynamic:
            return ov.PartialShape.dynamic()
        return ov.PartialShape([-1] * own.rank.get_length())
    inner = text.strip()
    if inner[:1] in "([" and inner[-1:] in ")]":
        inner = inner[1:-1]
    return ov.PartialShape([dimension(part, "shape") for part in inner.split(",") if part.strip()])


def layout_pair(text: str) -> tuple[str, str]:
    """Return the layouts of client and model of `NHWC:NCHW`, or of `NHWC`, which are the same."""
    of_client, colon, of_model = text.strip().upper().partition(":")
    of_model = of_model if colon else of_client
    for one in (of_client, of_model):
        if not _LAYOUT.fullmatch(one):
            raise LoadError(f"expected a layout such as NHWC or NHWC:NCHW, got {text!r}", field="layout")
    return of_client, of_model


def read_model(core: ov.Core, file: Path) -> ov.Model:
    """Read a model. One that cannot be read is tried with the operations of tokenizers, as OVMS always has
    them: they take 10 MB. Raises LoadError."""
    try:
        return core.read_model(file)
    except RuntimeError as error:
        try:
            core.add_extension(str(next(TOKENIZERS.glob("*openvino_tokenizers*"), "")))
            return core.read_model(file)
        except RuntimeError:
            raise LoadError(f"{file} cannot be read: {short(error)}", field="base_path") from error


# Not imported, because that changes every `Core` of the process.
TOKENIZERS = Path(ov.__file__).parents[1] / "openvino_tokenizers/lib"
HINT = "PERFORMANCE_HINT"
ANY = "-1"
MAX_INFO = 1 << 20  # characters of a value
MAX_SENTENCES = 600  # characters of the library's reason


class Model:
    """A plain model, read and prepared. `compile` may be called any number of times."""

    def __init__(self, spec: TensorSpec) -> None:
        """Raises LoadError naming the option."""
        path = Path(spec.model_path)
        self._spec = spec
        self._core = ov.Core()
        self.file = model_file(path)
        self.mapping: Mapping = read_mapping(path)
        self._model = read_model(self._core, self.file)
        self.rt_info, self.framework = _info(self._model, "model_info"), _info(self._model, "framework")
        self._model = self._preprocessed(self._model)
        self._reshape(self._model)
        self.inputs, self.outputs = self._ports()
        self.stateful = bool(self._model.get_sinks())
        for port in (*self.inputs, *self.outputs):
            if not port.info.datatype:
                kind = port.element_type.get_type_name()
                raise LoadError(f"{port.info.name!r} has elements of {kind}, which KServe's protocol lacks")

    @property
    def device(self) -> str:
        return self._spec.device

    def constant_bytes(self) -> int:
        return sum(op.get_byte_size() for op in self._model.get_ops() if op.get_type_name() == "Constant")

    def compile(self, shapes: Sequence[Sequence[int]] = ()) -> Any:
        """Compile it, with `shapes` for inputs of these alone. Raises LoadError, and RuntimeError for shapes
        that the model cannot have."""
        properties = device_properties(self._spec.properties, self._spec.device)
        if not {HINT, "NUM_STREAMS"} & properties.keys():
            properties[HINT] = "THROUGHPUT"  # on CPU 1.6 times less work per inference than LATENCY
        model = self.reshaped(shapes) if shapes else self._model
        try:
            compiled = self._core.compile_model(model, self._spec.device, properties)
        except RuntimeError as error:
            field = "plugin_config" if "property" in str(error).lower() else "target_device"
            text = f"it cannot be compiled for {self._spec.device}: {short(error)}"
            raise LoadError(text, field=field) from error
        if _runs_on_cpu(compiled):
            for port in self.inputs:
                port.narrow = NARROW.get(port.info.datatype)
        return compiled

    def reshaped(self, shapes: Sequence[Sequence[int]]) -> ov.Model:
        """Return a copy for inputs of these shapes. Raises RuntimeError for shapes that it cannot have."""
        model = self._model.clone()
        model.reshape({i: ov.PartialShape(list(shape)) for i, shape in enumerate(shapes)})
        return model

    def _ports(self) -> tuple[list[Port], list[Port]]:
        both = ports(self._model, self.mapping)
        for kind, ports_of_side in (("input", both[0]), ("output", both[1])):
            names = [port.info.name for port in ports_of_side]
            if len({*names}) < len(names):
                raise LoadError(f"two {kind}s have one name: {', '.join(sorted(names))}")
        return both

    def _preprocessed(self, model: ov.Model) -> ov.Model:
        """Return the model with what the configuration says of its inputs: layouts, which may transpose,
        the type that clients send, the order of colours, mean and scale."""
        spec = self._spec
        steps = (
            *(("layout", *pair) for pair in spec.layouts),
            *(("precision", *pair) for pair in spec.precisions),
            *(("color_format", "", text) for text in [spec.model_color_format] if text),
            *(("mean", *pair) for pair in spec.means),
            *(("scale", *pair) for pair in spec.scales),
        )
        if not steps:
            return model
        inputs, outputs = ports(model, self.mapping)
        changed = ov.preprocess.PrePostProcessor(model)
        layouts: dict[int, str] = {}  # of the model's inputs, by index
        for field, name, text in steps:
            both = field == "layout" and name
            port = self._port_named([*inputs, *outputs] if both else inputs, name, field)
            try:
                end = changed.input(port.index) if port in inputs else changed.output(port.index)
                if field == "layout":
                    of_client, of_model = layout_pair(text)
                    end.tensor().set_layout(ov.Layout(of_client))
                    end.model().set_layout(ov.Layout(of_model))
                    if port in inputs:
                        layouts[port.index] = of_model
                elif field == "precision":
                    of_client, _, converted = text.partition(":")
                    end.tensor().set_element_type(getattr(ov.Type, of_client))
                    if converted:
                        end.preprocess().convert_element_type(getattr(ov.Type, converted))
                else:
                    if port.index not in layouts and port.info.layout:
                        layouts[port.index] = port.info.layout
                        end.tensor().set_layout(ov.Layout(port.info.layout))
                        end.model().set_layout(ov.Layout(port.info.layout))
                    self._convert(end, port, layouts.get(port.index, ""), field, text)
            except RuntimeError as error:
                raise LoadError(f"{text!r} for {port.info.name!r}: {short(error)}", field=field) from error
        try:
            return changed.build()
        except RuntimeError as error:
            fields = list(dict.fromkeys(field for field, _, _ in steps))
            values = ", ".join(f"{name or 'the input'}: {text}" for _, name, text in steps)
            raise LoadError(f"{values}: {short(error)}", field=", ".join(fields)) from error

    def _convert(self, end: Any, port: Port, layout: str, field: str, text: str) -> None:
        """Add a step on an input: the order of its colours, mean or scale. Raises LoadError."""
        channels = layout.replace(",", "").strip("[]").find("C")
        value = json.loads(text) if field != "color_format" else text
        if channels < 0 and (field == "color_format" or isinstance(value, list)):
            raise LoadError(f"which axis of {port.info.name!r} has the channels? give layout", field=field)
        if field == "color_format":
            formats = ov.preprocess.ColorFormat
            end.tensor().set_color_format(getattr(formats, self._spec.color_format))
            end.preprocess().convert_color(getattr(formats, text))
            return
        if isinstance(value, list):
            dims = port.info.dims or ()
            low, high = dims[channels] if channels < len(dims) else (0, -1)
            if low == high != len(value):
                count = f"{len(value)} numbers for the {low} channels of {port.info.name!r}"
                raise LoadError(count, field=field)
        end.preprocess().convert_element_type(ov.Type.f32)
        getattr(end.preprocess(), field)(value if isinstance(value, list) else float(value))

    def _reshape(self, model: ov.Model) -> None:
        inputs, _ = ports(model, self.mapping)
        shapes: dict[int, ov.PartialShape] = {}
        for name, text in self._spec.shapes:
            port = self._port_named(inputs, name, "shape")
            shapes[port.index] = partial_shape(text, port.shape)
        batch_size = self._spec.batch_size or (ANY if self._spec.max_batch_size else "")
        if batch_size and not shapes:
            size = dimension(batch_size, "batch_size")
            for port in inputs:
                at = max(0, port.info.layout.find("N"))
                if port.shape.rank.is_dynamic or port.shape.rank.get_length() <= at:
                    raise LoadError(f"input {port.info.name!r} has no batch dimension", field="batch_size")
                shapes[port.index] = ov.PartialShape(list(port.shape))
                shapes[port.index][at] = size
        if not shapes:
            return
        try:
            model.reshape(shapes)
        except RuntimeError as error:
            field = "shape" if self._spec.shapes else "batch_size"
            raise LoadError(f"the model cannot be reshaped: {short(error)}", field=field) from error

    def _port_named(self, among: list[Port], name: str, field: str) -> Port:
        if not name and len(among) == 1:
            return among[0]
        for port in among:
            if name in port.info.names:
                return port
        names = ", ".join(repr(port.info.name) for port in among)
        if not name:
            raise LoadError(f"the model has {len(among)} inputs; give each by name: {names}", field=field)
        raise LoadError(f"{name!r} is not a tensor of the model; known: {names}", field=field)


def _info(model: ov.Model, name: str) -> dict[str, str]:
    """Return a part of the file's runtime information, as text; not every converter writes it."""
    if not model.has_rt_info([name]):
        return {}
    info = model.get_rt_info([name]).value
    if not isinstance(info, dict):
        return {}
    return {str(key): str(getattr(value, "value", value))[:MAX_INFO] for key, value in info.items()}


def short(error: Exception) -> str:
    return " ".join(sentences_of(error))[:MAX_SENTENCES]


# The inputs and outputs of a model as clients see them (names, datatypes, shapes, layouts), and the values
# of a call as OpenVINO's tensors, and back. Numbers are not copied on the way in.


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


def _runs_on_cpu(compiled: Any) -> bool:
    """AUTO, HETERO, MULTI and BATCH hand a model to other devices; `(CPU)` is one until another is ready."""
    try:
        devices = compiled.get_property("EXECUTION_DEVICES")
    except RuntimeError:  # not every device has it
        return False
    return any("CPU" in device for device in devices)


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
    return tuple((d.get_min_length(), UNBOUNDED_SIZE if _open(d) else d.get_max_length()) for d in shape)


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
        if low <= array.min() and array.max() <= high:
            return array
        wrong = (array < low) | (array > high)  # an infinity would become the largest float; NaN is kept
        if wrong.any():
            limits = f"OpenVINO's CPU device takes {port.info.datatype} from {low} to {high}"
            raise InvalidArgument.at("inputs", f"{port.info.name!r}: {limits}, got {array[wrong][0]}")
    return array


def _shared(array: np.ndarray[Any, Any]) -> ov.Tensor:
    if array.size and array.flags.writeable:
        return ov.Tensor(array, shared_memory=True)
    return ov.Tensor(array)  # small, or empty: the library takes only memory that may be written


def _texts(name: str, blob: Buffer, shape: Sequence[int]) -> ov.Tensor:
    texts = [bytes(text) for text in elements(blob)]
    for i, text in enumerate(texts):
        if text[-1:] == b"\0":
            raise InvalidArgument.at(
                "inputs", f"{name!r}: element {i} ends with a NUL byte, which OpenVINO drops"
            )
    longest = max(map(len, texts), default=0)
    if longest * len(texts) > MAX_TEXT_BYTES:
        raise InvalidArgument.at(
            "inputs", f"{name!r}: {len(texts)} texts of up to {longest} bytes are too much for one request"
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
        if not tensor.shape:  # a copy of rank 1, which has strides
            scalar, tensor = tensor, ov.Tensor(STRING, ov.Shape([]))
            scalar.copy_to(tensor)
            tensor.shape = ov.Shape([1])
        array = tensor.bytes_data  # if all texts are empty, numpy gives each a byte that stays unwritten
        texts = array.ravel().tolist() if any(array.strides) else [b""] * array.size
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
