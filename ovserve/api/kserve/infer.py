"""KServe v2 infer requests and responses, independent of the transport.

`http/` and `grpc_api/` make them and `serving/` acts on them. They are also the packets of a graph that takes
whole requests (tags REQUEST and RESPONSE).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ovserve.api.kserve.tensor import Tensor
from ovserve.errors import InvalidArgument, OvserveError

Parameter = bool | int | float | str


def unknown_parameters(where: str, names: Iterable[str], supported: Container[str] = ()) -> Iterator[str]:
    """Yield the paths of a tensor's parameters that mean nothing, such as `outputs[0].parameters.odd`."""
    return (f"{where}.parameters.{name}" for name in names if name not in supported)


def as_whole(value: Any) -> int | None:
    """The integer that a parameter is; 5.0 is one too, because some clients know floats only. Else None."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class InferRequest:
    """`outputs` are the names asked for; empty means all. An input with a fault is for Python nodes only."""

    model: str
    inputs: Mapping[str, Tensor]
    version: str = ""
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()  # parameters of its tensors that mean nothing here

    def check_inputs(self, loose: Container[str] = ()) -> None:
        """Raise InvalidArgument for the first input with a fault whose name is not in `loose`."""
        for i, (name, tensor) in enumerate(self.inputs.items()):
            if tensor.fault is not None and name not in loose:
                where = f"inputs[{i}]"
                raise InvalidArgument(
                    f"{where}.{tensor.fault}", param=f"{where}.{str(tensor.fault).partition(':')[0]}"
                )


@dataclass(frozen=True)
class InferResponse:
    """A response without outputs is the empty last one that Triton's streaming clients may ask for."""

    outputs: Mapping[str, Tensor]
    model: str = ""
    version: str = ""
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


@dataclass(frozen=True)
class InferFailure:
    """A request of a stream that ends without a (further) response; the stream goes on."""

    id: str
    error: OvserveError
