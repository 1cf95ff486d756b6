"""Compiles a JSON schema to one format of a constraint: for formats of answers and for arguments of tools.

The EBNF comes from this package: in one line, linear in the schema, and correct where the library's
conversion is not.
"""

from __future__ import annotations

from typing import Any

from ovserve.llm.grammar.constraint import Format, ebnf
from ovserve.llm.grammar.writer import write


def compact(schema: Any, root: Any = None, what: str = "schema") -> Format:
    """Return the format. `root`: the document that references point into, if `schema` is a part. `what`: the
    field.

    Raises InvalidArgument for an invalid schema, or one without instances, or too large."""
    return ebnf(write(schema, root=root, what=what, report=False).grammar)
