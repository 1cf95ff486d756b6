"""JSON by a schema, as one format of a constraint; called for formats of answers and for arguments of tools.

The text is EBNF of our own (`grammar/`): in one line, linear in the schema, and right where the library's
conversion is not.
"""

from __future__ import annotations

from typing import Any

from ovserve.llm.grammar.constraint import Format, ebnf
from ovserve.llm.grammar.writer import write


def compact(schema: Any, root: Any = None, what: str = "schema") -> Format:
    """`root`: the document that references of `schema` point into, if that is a part. `what`: the field.

    Raises InvalidArgument for what is no schema, has no instance, or is too large."""
    return ebnf(write(schema, root=root, what=what, report=False).grammar)
