"""`make docs`: writes the table at the end of docs/calculators.md from the contracts of the calculators; tests/test_docs.py checks it."""

from __future__ import annotations

from collections.abc import Iterable
from types import UnionType
from typing import Any

from ovserve.calculators.shipped import MODULES
from ovserve.graph import Calculator, Registry
from ovserve.graph.calculator import Port
from tests.conftest import ROOT

FILE = ROOT / "docs/calculators.md"
MARK = "<!-- Written by `make docs` from here on. -->\n"

INTRODUCTION = """
## Calculators of the server

Each port has the type of its packets. Nodes of plain models and of Python, `PassThroughCalculator` and
`MergeCalculator` also connect tags of your choice. [graphs.md](graphs.md#tags-and-names) explains tags.

|calculator|reads|writes|side packets|
|---|---|---|---|
"""


def text() -> str:
    registry = Registry(MODULES)
    head = FILE.read_text().partition(MARK)[0] + MARK
    return head + INTRODUCTION + "".join(_row(name, registry[name]) for name in registry.names)


def _row(name: str, kind: type[Calculator]) -> str:
    # The ports of the class: a node's options can only add to them.
    bare = type(kind.__name__, (kind,), {"parse_options": classmethod(lambda cls, node: None)})
    contract = Calculator.get_contract.__func__(bare, None)  # type: ignore[attr-defined]
    cells = [_ports(contract.inputs), _ports(contract.outputs), _ports(contract.side_packets)]
    if contract.side_outputs:
        cells[2] = ", ".join(filter(None, (cells[2], f"writes {_ports(contract.side_outputs)}")))
    path = kind.__module__.replace(".", "/") + ".py"
    return f"|[`{name}`](../{path})|{'|'.join(cells)}|\n"


def _ports(ports: Iterable[Port[Any]]) -> str:
    return ", ".join(
        f"`{p.tag or p.index}`{_type(p.type)}{' (optional)' if p.optional else ''}" for p in ports
    )


def _type(kind: type | UnionType) -> str:
    if kind is object:
        return ""
    return " " + (
        " or ".join(t.__name__ for t in kind.__args__) if isinstance(kind, UnionType) else kind.__name__
    )


if __name__ == "__main__":
    FILE.write_text(text())
