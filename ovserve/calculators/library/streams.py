"""Switch: each packet goes to one of several outputs, by a predicate of the author's.

    @calculator("RouterCalculator")
    class Router(RequestSwitch):
        def choose(self, cc: Context, question: str) -> int:
            return 1 if "code" in question else 0

| port of Switch | type |
|---|---|
| input `IN` | any |
| outputs `OUT:0`, `OUT:1`, ... | any |

RequestSwitch has the input and outputs `DecodedRequest` and a side packet `LLM_NODE_RESOURCES`: any model of
the graph, which only reads the request. Each choice counts as the node's event `out_0`, `out_1` and so on.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ovserve.calculators.library.messages import question
from ovserve.graph import Calculator, Context, Contract, Input, Node, Output, SidePacket, calculator
from ovserve.graph.options import awaited, must_override
from ovserve.kinds.text.node import DecodedRequest
from ovserve.kinds.text.resource import LlmResources


@calculator("PassThroughCalculator")
class PassThrough(Calculator):
    """Each input goes to the output of the same tag and index, untouched."""

    @classmethod
    def get_contract(cls, node: Node) -> Contract:
        inputs: tuple[Input[Any], ...] = tuple(Input(f"{e.tag}:{e.index}") for e in node.inputs)
        return Contract(inputs, tuple(Output(f"{p.tag}:{p.index}", optional=True) for p in inputs))

    async def process(self, cc: Context) -> None:
        for source, target in zip(cc.contract.inputs, cc.contract.outputs, strict=True):
            if source in cc.values:
                cc.send(target, cc[source])


def _switching(node: Node, own: Contract) -> Contract:
    """Return a switch's own ports, with an output of the input's type for each branch. Raises LoadError."""
    outputs = [end.index for end in node.outputs if end.tag == "OUT"]
    if not outputs:
        raise node.error("a switch needs outputs OUT:0, OUT:1 and so on", "output_stream")
    type_: Any = own.inputs[0].type
    out: tuple[Output[Any], ...] = tuple(Output(f"OUT:{i}", type_) for i in range(max(outputs) + 1))
    return Contract(own.inputs, out, own.side_packets, own.side_outputs, own.options)


def _send(cc: Context, value: Any, index: int) -> None:
    outputs = cc.contract.outputs
    if not 0 <= index < len(outputs):
        raise IndexError(f"choose() returned {index}; the node has OUT:0 to OUT:{len(outputs) - 1}")
    cc.count(f"out_{index}")
    cc.send(outputs[index], value)


class Switch(Calculator):
    """Base of switches. Override `choose`."""

    given: Input[Any] = Input("IN", object)

    @classmethod
    def get_contract(cls, node: Node) -> Contract:
        return _switching(node, super().get_contract(node))

    @must_override
    def choose(self, cc: Context, value: Any) -> int | Awaitable[int]:
        """Return the index of the output, at once or when awaited."""
        raise NotImplementedError

    async def process(self, cc: Context) -> None:
        value = cc[self.given]
        if value is not None:
            _send(cc, value, await awaited(self.choose(cc, value)))


class RequestSwitch(Calculator):
    """A switch of requests. `choose` gets the last user message, or the prompt."""

    runs_on = "loop"

    given = Input("IN", DecodedRequest)
    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)

    @classmethod
    def get_contract(cls, node: Node) -> Contract:
        return _switching(node, super().get_contract(node))

    @must_override
    def choose(self, cc: Context, value: str) -> int | Awaitable[int]:
        """Return the index of the output, at once or when awaited."""
        raise NotImplementedError

    async def process(self, cc: Context) -> None:
        request, llm = cc[self.given], cc[self.llm]
        if request is not None:
            text = await question(llm, await request.to_request(llm))
            _send(cc, request, await awaited(self.choose(cc, text)))


@calculator("MergeCalculator")
class Merge(Calculator):
    """Packets of several streams become one stream, in the order in which they come.

    | port | type |
    |---|---|
    | inputs `IN:0`, `IN:1`, ... | any |
    | output `OUT` | any |

    For branches of which each request takes one, or several one after the other. It needs no input stream
    handler: every input is its own sync set. Timestamps of the output count from 0.
    """

    immediate = True

    merged: Output[Any] = Output("OUT", object)

    def __init__(self) -> None:
        self._next = 0

    @classmethod
    def get_contract(cls, node: Node) -> Contract:
        if not any(end.tag == "IN" for end in node.inputs):
            raise node.error("a merge needs inputs IN:0, IN:1 and so on", "input_stream")
        count = max(end.index for end in node.inputs if end.tag == "IN") + 1
        inputs: tuple[Input[Any], ...] = tuple(Input(f"IN:{i}") for i in range(count))
        return Contract(inputs, (cls.merged,))

    def process(self, cc: Context) -> None:
        for value in cc.values.values():
            cc.send(self.merged, value, self._next)
            self._next += 1
