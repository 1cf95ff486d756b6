"""Writes small models with the names that OVMS's test graphs use, as OpenVINO IR in its repository layout.

    python -m scripts.dummy_models DIRECTORY

makes DIRECTORY/NAME/1/model.xml for each, in about a second. It needs openvino and numpy alone. The folder
formats has the model `dummy` in other formats.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset15 as op

from scripts.dummy_formats import write_formats


def _named(node: Any, *names: str) -> Any:
    node.output(0).get_tensor().set_names(set(names))
    return node


def _parameter(shape: list[int], kind: Any, name: str) -> Any:
    return _named(op.parameter(shape, kind, name=name), name)


def _plus(input_: str, output: str, shape: list[int], kind: Any, number: float = 1.0) -> ov.Model:
    x = _parameter(shape, kind, input_)
    return ov.Model([_named(op.add(x, op.constant(np.array(number, kind))), output)], [x], input_)


def _add() -> ov.Model:
    x, y = (_parameter([1, 10], np.float32, n) for n in ("input1", "input2"))
    return ov.Model([_named(op.add(x, y), "sum")], [x, y], "add")


def _passthrough() -> ov.Model:
    x = _named(op.parameter([-1, -1], np.uint8, name="input"), "input", "input:0")
    return ov.Model([_named(op.reshape(x, op.shape_of(x), False), "copy:0")], [x], "passthrough")


def _strings() -> ov.Model:
    x = _named(op.parameter(ov.PartialShape([-1]), ov.Type.string, name="my_name"), "my_name")
    return ov.Model([x], [x], "passthrough_string")


def _one_string() -> ov.Model:
    x = _named(op.parameter(ov.PartialShape([]), ov.Type.string, name="text"), "text")
    return ov.Model([x], [x], "one_string")


def _no_name_output() -> ov.Model:
    x, y = (_parameter([1, 10], np.int8, n) for n in ("input_1", "input_2"))
    return ov.Model([op.multiply(x, y), op.add(x, y)], [x, y], "no_name_output")


def _summator() -> ov.Model:
    """Return a model with state: it adds its input to what it has summed."""
    x = _parameter([1, 1], np.float32, "input")
    info = ov.op.util.VariableInfo()
    info.data_shape, info.data_type, info.variable_id = ov.PartialShape([1, 1]), ov.Type.f32, "sum"
    variable = ov.op.util.Variable(info)
    total = op.add(op.read_value(op.constant(np.zeros((1, 1), np.float32)), variable), x)
    return ov.Model([_named(total, "add_sum").output(0)], [op.assign(total, variable)], [x], "summator")


def _product() -> ov.Model:
    """Return a model whose inputs may each have any shape, and only some go together."""
    x, y = (_parameter([-1, -1], np.float32, n) for n in ("left", "right"))
    return ov.Model([_named(op.matmul(x, y, False, False), "product")], [x, y], "product")


def _two() -> ov.Model:
    """Return a model of two outputs: the sum and the difference of its inputs."""
    x, y = (_parameter([-1, 10], np.float32, n) for n in ("x", "y"))
    results = [_named(op.add(x, y), "plus"), _named(op.subtract(x, y), "minus")]
    return ov.Model(results, [x, y], "two")


def _types() -> ov.Model:
    """Return a model that copies an input of every type that KServe's protocol has."""
    kinds = [
        *("boolean", "u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64"),
        *("f16", "f32", "f64", "bf16", "string"),
    ]
    inputs = [_parameter(ov.PartialShape([-1]), getattr(ov.Type, kind), f"in_{kind}") for kind in kinds]
    outputs = [
        _named(op.reshape(x, op.shape_of(x), False), f"out_{k}") for x, k in zip(inputs, kinds, strict=True)
    ]
    return ov.Model(outputs, inputs, "types")


MODELS: dict[str, Callable[[], ov.Model]] = {
    "dummy": lambda: _plus("b", "a", [1, 10], np.float32),
    "dummyUppercase": lambda: _plus("B", "A", [1, 10], np.float32),
    "add": _add,
    "scalar": lambda: _plus("model_scalar_input", "model_scalar_output", [], np.float32, 0.0),
    "passthrough": _passthrough,
    "passthrough_string": _strings,
    "one_string": _one_string,
    "increment_1x3x4x5": lambda: _plus("input", "output", [1, 3, 4, 5], np.float32),
    "no_name_output": _no_name_output,
    "dummy_fp64": lambda: _plus("input:0", "output:0", [-1, 10], np.float64),
    "summator": _summator,
    "product": _product,
    "two": _two,
    "types": _types,
}


def write(base: Path) -> None:
    for name, make in MODELS.items():
        directory = base / name / "1"
        directory.mkdir(parents=True, exist_ok=True)
        ov.save_model(make(), directory / "model.xml", compress_to_fp16=False)
        if name == "no_name_output":  # the library names what has no name
            xml = directory / "model.xml"
            xml.write_text(re.sub(r' (output_)?names="Result_\d+"', "", xml.read_text()))
    write_formats(base / "formats")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
