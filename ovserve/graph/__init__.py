"""MediaPipe's graph model in Python. It is independent of LLMs and HTTP, and could be a package of its own.

What a calculator author imports is re-exported here; `graph.graph` and `testing` are for hosts and tests.
`pbtxt/` reads files, `config` and `planning` make a plan of them, `scheduler`, `nodes` and `streams` run it.
"""

from ovserve.graph.calculator import (
    Calculator,
    Context,
    Contract,
    Input,
    LoadContext,
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
    "LoadContext",
    "Node",
    "Output",
    "Packet",
    "Registry",
    "SideOutput",
    "SidePacket",
    "calculator",
]
