"""Failures of code that graph authors wrote: `calculators.py`, installed calculators and parsers.

Whatever such code raises fails its graph or its request. That includes what would end the whole process in
plain Python: SystemExit of a `sys.exit()`, KeyboardInterrupt, and a CancelledError without a cancellation.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from ovserve.errors import LoadError, described
from ovserve.graph.calculator import Calculator, Contract
from ovserve.graph.node import Node


def load_error(error: BaseException, file: Path) -> LoadError:
    """Return the LoadError for a file whose code raised, with the line of the file that raised it."""
    return LoadError(described(error), file=str(file), line=line_in(error, file))


def line_in(error: BaseException, file: Path) -> int:
    """Return the innermost line of the file in the traceback; 0 if there is none."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return error.lineno or 0
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)]
    return (lines[-1] or 0) if lines else 0


def _innermost(error: BaseException) -> str:
    """Return FILE:LINE where the error was raised; "" if unknown."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def contract_of(node: Node, cls: type[Calculator]) -> Contract:
    """Return the calculator's contract for the node; any other exception becomes a LoadError."""
    try:
        return cls.get_contract(node)
    except LoadError:
        raise
    except BaseException as exc:
        at = f" ({place})" if (place := _innermost(exc)) else ""
        fault = f"{node.calculator}: get_contract() raised {described(exc)}{at}"
        raise node.error(fault, "calculator") from exc
