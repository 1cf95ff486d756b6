"""Proves grammars of the library's engines, in a process of its own that has a tokenizer and no model."""

from __future__ import annotations

import time
from collections.abc import Callable

import openvino_genai as ov_genai

from ovserve.errors import LoadError
from ovserve.kinds.text.worker.genai.grammar import TRIVIAL, GrammarCompiler, said
from ovserve.kinds.text.worker.genai.quirks.read_only_gguf import writable
from ovserve.llm.grammar.cost import PROBE_TOKENS, check_token_seconds


def prover(model_path: str) -> Callable[[str], str]:
    """Return the prover of a process that has a tokenizer and no model. Raises LoadError.

    The prover returns what is wrong with a structural tag, or "". It raises ResourceExhausted where the
    tag's tokens would hold up the steps.
    """
    try:
        with writable(model_path) as path:
            tokenizer = ov_genai.Tokenizer(path)
        compiler = GrammarCompiler(tokenizer, len(tokenizer.get_vocab()))
        compiler.compile(TRIVIAL)  # makes the library's compiler, so that no grammar pays for that
    except (RuntimeError, TypeError) as error:
        raise LoadError(said(error)) from error

    def prove(structural_tag: str) -> str:
        if fault := compiler.compile(structural_tag, 1):
            return fault
        began = time.process_time()
        fault = compiler.compile(structural_tag)
        check_token_seconds((time.process_time() - began) / PROBE_TOKENS)
        return fault

    return prove
