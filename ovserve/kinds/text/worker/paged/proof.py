"""Proves grammars of paged engines, in a process of its own, with the library that will make their masks."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

import numpy as np

from ovserve.errors import LoadError
from ovserve.kinds.text.worker.genai.vocabulary import read_vocabulary
from ovserve.kinds.text.worker.paged.grammars import Compiler
from ovserve.kinds.text.worker.paged.masks import Matcher, mask_bits
from ovserve.llm.grammar.cost import NO_TEXT, PROBE_TOKENS, check_token_seconds


def prover(model_path: str) -> Callable[[str], str]:
    """Return what says what is wrong with a structural tag, or "". Raises LoadError.

    It raises ResourceExhausted where the tag's tokens would hold up the steps. Where the library is missing,
    that is wrong with every grammar.
    """
    texts, eos_ids, logits = read_vocabulary(model_path)
    try:
        compiler = Compiler(texts, eos_ids, logits)
    except LoadError as error:
        missing = error.message
        return lambda _: missing

    def prove(structural_tag: str) -> str:
        grammar, fault = compiler.compile(structural_tag)
        if grammar is None:
            return fault
        began = time.process_time()
        fault = _probe(compiler.matcher(grammar), compiler.logits)
        check_token_seconds((time.process_time() - began) / PROBE_TOKENS)
        return fault

    return prove


def _probe(matcher: Matcher, logits: int) -> str:
    """Write some tokens of a text at random."""
    random, row = Random(0), np.empty_like(matcher.stops)
    for _ in range(PROBE_TOKENS):
        if matcher.ended:
            return ""
        matcher.fill(row)
        row &= ~matcher.stops
        allowed = np.flatnonzero(mask_bits(row, logits))
        if not len(allowed):
            return NO_TEXT
        matcher.accept(int(random.choice(allowed)))
    return ""
