"""Faults of code that authors of graphs wrote: `calculators.py`, installed calculators and parsers.

Whatever such code raises is the failure of its graph or its request, also what Python means for the whole
process: SystemExit of a `sys.exit()`, KeyboardInterrupt, and CancelledError that nobody asked for.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from ovserve.errors import LoadError, described
from ovserve.graph.calculator import Calculator, Contract
from ovserve.graph.node import Node


def load_error(error: BaseException, file: Path) -> LoadError:
    """The refusal of a file whose code raised, with the line of the file where it did."""
    return LoadError(described(error), file=str(file), line=line_in(error, file))


def line_in(error: BaseException, file: Path) -> int:
    """The innermost line of the file that the error passed; 0 if there is none."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return error.lineno or 0
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)]
    return (lines[-1] or 0) if lines else 0


def _innermost(error: BaseException) -> str:
    """FILE:LINE where the error was raised; "" if that is not known."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def contract_of(node: Node, cls: type[Calculator]) -> Contract:
    """What the calculator says of the node; whatever else it raises is a fault of the graph too."""
    try:
        return cls.get_contract(node)
    except LoadError:
        raise
    except BaseException as exc:
        at = f" ({place})" if (place := _innermost(exc)) else ""
        fault = f"{node.calculator}: get_contract() raised {described(exc)}{at}"
        raise node.error(fault, "calculator") from exc
