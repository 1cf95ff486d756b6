"""The real compiler of grammars with a vocabulary of single bytes, to judge which texts a grammar admits."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ovserve.kinds.text.worker.paged.grammars import Compiler
from ovserve.kinds.text.worker.paged.masks import mask_bits
from ovserve.llm.grammar.constraint import Constraint, Format, constrain, ebnf, structural_tag
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


def some_text(constraint: Constraint) -> str:
    """A text that the constraint admits; it ends where it may, and numbers are short."""
    compiled, fault = _compiler().compile(structural_tag(constraint.format))
    assert compiled is not None, fault
    matcher, text = _compiler().matcher(compiled), bytearray()
    mask = np.empty_like(matcher.stops)
    while not matcher.may_end:
        matcher.fill(mask)
        allowed = [int(byte) for byte in np.flatnonzero(mask_bits(mask, 256))]
        byte = min(allowed, key=lambda byte: (byte in b"0123456789.eE \n", byte))
        assert matcher.accept(byte)
        text.append(byte)
    return text.decode()


def language(body: str) -> Language:
    """Return the texts of one rule's body."""
    return Language(ebnf(f"root ::= {body}"))


def instances(schema: Any) -> Language:
    """Return the texts that a schema's own grammar admits; all of the schema must be enforced."""
    written = write(schema)
    assert not written.unenforced, written.unenforced
    return Language(ebnf(written.grammar))
