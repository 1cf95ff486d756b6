"""Compiles a JSON schema to one format of a constraint: for formats of answers and for arguments of tools.

The EBNF comes from this package: in one line, linear in the schema, and correct where the library's
conversion is not.
"""

from __future__ import annotations

from typing import Any

from ovserve.errors import InvalidArgument
from ovserve.llm.grammar.constraint import Format, ebnf
from ovserve.llm.grammar.writer import Written, write


def compact(schema: Any, root: Any = None, what: str = "schema", *, exact: bool = False) -> Format:
    """Return the format. `root`: the document that references point into, if `schema` is a part. `what`: the
    field. `exact`: see `write`.

    Raises InvalidArgument for an invalid schema, or one without instances, or too large."""
    return ebnf(write(schema, root=root, what=what, report=False, exact=exact).grammar)


def strictly(schema: Any, what: str) -> Written:
    """Write a schema that must be enforced in full. Raises InvalidArgument if some of it cannot be."""
    result = write(schema, what=what)
    if result.unenforced:
        raise InvalidArgument(
            f"{what}: with strict: true a schema may ask only for what can be enforced, "
            f"got {result.unenforced[0]}",
            param=what,
        )
    return result
