"""MediaPipe's graph model in Python; it knows nothing of LLMs or HTTP and could be published alone.

What a calculator author imports is re-exported here; `graph.load` and `testing` are for hosts and tests.
"""

from ovserve.graph.calculator import (
    Calculator,
    Context,
    Contract,
    Input,
    Output,
    Packet,
    SideOutput,
    SidePacket,
)
from ovserve.graph.node import Node
from ovserve.graph.registry import Registry, calculator

__all__ = [
    "Calculator",
    "Context",
    "Contract",
    "Input",
    "Node",
    "Output",
    "Packet",
    "Registry",
    "SideOutput",
    "SidePacket",
    "calculator",
]
