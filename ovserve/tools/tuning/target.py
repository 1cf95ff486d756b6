"""The graph that is tuned and the engine in it, found with the server's own loader."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ovserve.calculators.shipped import MODULES
from ovserve.engine.protocol.specs import TextSpec
from ovserve.errors import InvalidArgument
from ovserve.graph import Node, Registry
from ovserve.kinds.text.options import LlmOptions
from ovserve.protos.llm_pb2 import LLMCalculatorOptions
from ovserve.serving.loader import check
from ovserve.serving.spec import GRAPH_FILE, ServableSpec


@dataclass(frozen=True)
class Target:
    """The target. `file` is absolute; `node` is the one whose options make `spec`."""

    file: Path
    node: Node
    options: LLMCalculatorOptions
    spec: TextSpec
    parsed: LlmOptions

    @property
    def base(self) -> Path:
        """Return what relative paths in the graph start from."""
        return self.file.parent


def find(path: Path, name: str = "") -> Target:
    """Find the target in a graph file or its directory; `name` of the node, if several have an engine.

    Raises LoadError for a graph that would not be served, InvalidArgument for a node that is not there.
    """
    file = path.absolute() / GRAPH_FILE if path.is_dir() else path.absolute()
    registry = Registry(MODULES)
    registry.add_entry_points()
    checked = check(ServableSpec(file.parent.name, file.parent, file, origin=str(path)), registry)
    checked.graph.close()
    engines = [e for e in checked.engines.values() if isinstance(e.options, LlmOptions)]
    nodes = {engine.node.name: engine for engine in engines}
    names = ", ".join(sorted(nodes)) or "none"
    if name and name not in nodes:
        raise InvalidArgument(f"--node: no node {name!r} with an engine in {file}; there are: {names}")
    if not name and len(nodes) != 1:
        raise InvalidArgument(f"{file} has {len(nodes)} nodes with an engine ({names}); choose one by --node")
    engine = nodes[name] if name else next(iter(nodes.values()))
    options = engine.node.options(LLMCalculatorOptions)
    assert options is not None, "the graph was checked"
    if not isinstance(engine.spec, TextSpec):
        raise InvalidArgument(
            f"{file}: the stateful pipeline of node {engine.node.name!r} has nothing to tune"
        )
    return Target(file, engine.node, options, engine.spec, engine.options)
