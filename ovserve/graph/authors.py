"""Failures of code that graph authors wrote: `calculators.py`, installed calculators and parsers.

Whatever such code raises fails its graph or its request. That includes what would end the whole process in
plain Python: SystemExit of a `sys.exit()`, KeyboardInterrupt, and a CancelledError without a cancellation.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from ovserve.errors import LoadError, described

if TYPE_CHECKING:
    from ovserve.graph.calculator import Calculator, Contract
    from ovserve.graph.node import Node


def load_error(error: BaseException, files: Collection[Path], otherwise: Path) -> LoadError:
    """Return the LoadError of authors' code, at the innermost line that is in one of their files."""
    lines = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        lines.append((error.filename or "", error.lineno or 0))
    own = {str(path) for path in files}
    file, line = next(((f, n) for f, n in reversed(lines) if f in own), (str(otherwise), 0))
    return LoadError(described(error), file=file, line=line)


def innermost(error: BaseException, directory: Path | None = None) -> str:
    """Return FILE:LINE of the innermost line in `directory`, or where the error was raised; "" if unknown."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if directory is not None and Path(frame.filename).parent == directory]
    return f"{(own or frames)[-1].filename}:{(own or frames)[-1].lineno}" if frames else ""


def contract_of(node: Node, cls: type[Calculator]) -> Contract:
    """Return the calculator's contract for the node; any other exception becomes a LoadError."""
    try:
        return cls.get_contract(node)
    except LoadError:
        raise
    except BaseException as exc:
        at = f" ({place})" if (place := innermost(exc, node.config.base)) else ""
        fault = f"{node.calculator}: get_contract() raised {described(exc)}{at}"
        raise node.error(fault, "calculator") from exc
