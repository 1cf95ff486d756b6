"""The inputs and outputs of a model as clients see them: names, datatypes, shapes, layouts."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass
from typing import Any

import openvino as ov

from ovserve.errors import LoadError
from ovserve.kinds.tensors.files import Mapping
from ovserve.kinds.tensors.spec import KSERVE_TYPES, UNBOUNDED, TensorInfo

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
