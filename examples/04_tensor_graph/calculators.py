"""AddTensorsCalculator: adds two tensors, and counts the requests of its run. Used by `graph.pbtxt` here.
Serve:

    .venv/bin/ovserve serve --grpc_port 9000 --model_name add --model_path examples/04_tensor_graph

and ask with any client of KServe's protocol, or with curl:

    curl localhost:8000/v2/models/add/infer -d '{"inputs": [
      {"name": "a", "datatype": "FP32", "shape": [2], "data": [1, 2]},
      {"name": "b", "datatype": "FP32", "shape": [2], "data": [10, 20]}]}'

One request is one run of the graph. The requests of a gRPC stream are all in the same run: there, the count
goes up.
"""

from __future__ import annotations

import numpy as np

from ovserve.api.kserve import Tensor
from ovserve.errors import InvalidArgument
from ovserve.graph import Calculator, Context, Input, Output, calculator


@calculator("AddTensorsCalculator")
class AddTensors(Calculator):
    a = Input("A", Tensor)
    b = Input("B", Tensor)
    sum = Output("SUM", Tensor)
    count = Output("COUNT", Tensor, optional=True)

    async def open(self, cc: Context) -> None:
        self.seen = 0

    async def process(self, cc: Context) -> None:
        a, b = cc[self.a], cc[self.b]
        if a is None or b is None:
            return
        if a.datatype != b.datatype:
            raise InvalidArgument(f"inputs: expected one datatype, got {a.datatype} and {b.datatype}")
        self.seen += 1
        cc.send(self.sum, Tensor.of_array(a.array() + b.array()))
        cc.send(self.count, Tensor.of_array(np.array([self.seen])))
