"""Compiles a plain model by its options: read, preprocess, reshape, compile.

The texts of OVMS's options `shape`, `batch_size` and `layout`, as OpenVINO's types.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openvino as ov

from ovserve.engine.host.cpu import device_properties
from ovserve.errors import LoadError, sentences_of
from ovserve.kinds.tensors.spec import Mapping, TensorSpec, model_file, read_mapping
from ovserve.kinds.tensors.worker.ports import Port, narrow, ports

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
        try:
            self._model = self._core.read_model(self.file)
        except RuntimeError as error:
            raise LoadError(f"{self.file} cannot be read: {short(error)}", field="base_path") from error
        self.rt_info, self.framework = _info(self._model, "model_info"), _info(self._model, "framework")
        self._model = self._preprocessed(self._model)
        self._reshape(self._model)
        self.inputs, self.outputs = self._ports()
        if self.device == "CPU":
            narrow(self.inputs)
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
            return self._core.compile_model(model, self._spec.device, properties)
        except RuntimeError as error:
            field = "plugin_config" if "property" in str(error).lower() else "target_device"
            text = f"it cannot be compiled for {self._spec.device}: {short(error)}"
            raise LoadError(text, field=field) from error

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
        colours = ("", spec.model_color_format) if spec.model_color_format else None
        steps = (
            *(("layout", *pair) for pair in spec.layouts),
            *(("precision", *pair) for pair in spec.precisions),
            *((("color_format", *colours),) if colours else ()),
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
                if field == "layout":
                    of_client, of_model = layout_pair(text)
                    end = changed.input(port.index) if port in inputs else changed.output(port.index)
                    end.tensor().set_layout(ov.Layout(of_client))
                    end.model().set_layout(ov.Layout(of_model))
                    if port in inputs:
                        layouts[port.index] = of_model
                elif field == "precision":
                    changed.input(port.index).tensor().set_element_type(getattr(ov.Type, text))
                else:
                    end = changed.input(port.index)
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
