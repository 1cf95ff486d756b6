"""PyTensorOvTensorConverterCalculator: between Python nodes and nodes of models.

Both kinds of streams carry one type here, so it gives a tensor its name in the handler, or checks that a
handler's tensor is one that models take.
"""

from __future__ import annotations

from dataclasses import dataclass

from ovserve.api.kserve import Tensor
from ovserve.api.kserve.tensor import BYTES, DATATYPES
from ovserve.errors import InvalidArgument
from ovserve.graph import Calculator, Context, Contract, Input, Node, Output, calculator
from ovserve.kinds.python.node import NamedTensor
from ovserve.protos.options_pb2 import PyTensorOvTensorConverterCalculatorOptions

PY, OV = "OVMS_PY_TENSOR", "OVTENSOR"


@dataclass(frozen=True)
class ConverterOptions:
    """`name` is that of the made Python tensor; empty: from Python to OpenVINO."""

    source: Input[Tensor]
    target: Output[Tensor]
    name: str


def parse(node: Node) -> ConverterOptions:
    for field, ends in (("input_stream", node.inputs), ("output_stream", node.outputs)):
        if len(ends) != 1:
            raise node.error(f"expected exactly one, got {len(ends)}", field)
    into, out_of = node.inputs[0].tag, node.outputs[0].tag
    if {into, out_of} != {PY, OV}:
        raise node.error(
            f"expected {PY} on one side and {OV} on the other, got {into or 'none'} and {out_of or 'none'}",
            "input_stream",
            node.inputs[0].text,
        )
    options = node.options(PyTensorOvTensorConverterCalculatorOptions)
    names = dict(options.tag_to_output_tensor_names) if options is not None else {}
    name = names.get(PY, "") if out_of == PY else ""
    if out_of == PY and not name:
        raise node.error(
            f"required with the key {PY!r}: the name of the tensor", "tag_to_output_tensor_names"
        )
    return ConverterOptions(Input(into, Tensor), Output(out_of, Tensor), name)


@calculator("PyTensorOvTensorConverterCalculator")
class PyTensorOvTensorConverter(Calculator):
    runs_on = "loop"
    options_type = PyTensorOvTensorConverterCalculatorOptions

    @classmethod
    def get_contract(cls, node: Node) -> Contract:
        options = parse(node)
        return Contract((options.source,), (options.target,), options=options)

    def process(self, cc: Context) -> None:
        options: ConverterOptions = cc.contract.options
        tensor = cc[options.source]
        if tensor is None:
            return
        if options.name:
            cc.send(options.target, NamedTensor.of_tensor(options.name, tensor))
            return
        stream = cc.node.inputs[0].name
        if tensor.datatype not in DATATYPES or tensor.datatype == BYTES:
            numbers = ", ".join(name for name in DATATYPES if name != BYTES)
            raise InvalidArgument(
                f"stream {stream!r}: expected one of {numbers}, got datatype {tensor.datatype[:64]!r}"
            )
        if tensor.fault is not None:
            raise InvalidArgument(f"stream {stream!r}: {tensor.fault}")
        cc.send(options.target, tensor)
