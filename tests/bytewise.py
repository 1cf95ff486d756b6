"""The real compiler of grammars with a vocabulary of single bytes, to judge which texts a grammar admits."""

from __future__ import annotations

from functools import cache
from typing import Any

from ovserve.kinds.text.worker.paged.grammars import Compiler
from ovserve.llm.grammar.constraint import Format, constrain, ebnf, structural_tag
from ovserve.llm.grammar.writer import write


@cache
def _compiler() -> Compiler:
    return Compiler([bytes([value]) for value in range(256)] + [b""], [256], 257)


class Language:
    """The texts that a compiled format admits."""

    def __init__(self, form: Format) -> None:
        self._compiled, fault = _compiler().compile(structural_tag(constrain(form, "x").format))
        assert not fault, fault

    def __contains__(self, text: str) -> bool:
        matcher = _compiler().matcher(self._compiled)
        return all(map(matcher.accept, text.encode())) and bool(matcher.may_end)


def language(body: str) -> Language:
    """Return the texts of one rule's body."""
    return Language(ebnf(f"root ::= {body}"))


def instances(schema: Any) -> Language:
    """Return the texts that a schema's own grammar admits; all of the schema must be enforced."""
    written = write(schema)
    assert not written.unenforced, written.unenforced
    return Language(ebnf(written.grammar))
