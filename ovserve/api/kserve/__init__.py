"""KServe's open inference protocol v2: tensors, infer requests and responses, and their JSON form.

`Tensor` is also what a calculator of a tensor graph takes and sends. Pure data and mapping; REST and gRPC
both translate to it, and `serving/` acts on it.
"""

from ovserve.api.kserve.json_body import InferFailure, InferRequest, InferResponse, Parameter, as_whole
from ovserve.api.kserve.tensor import Tensor

__all__ = ["InferFailure", "InferRequest", "InferResponse", "Parameter", "Tensor", "as_whole"]
