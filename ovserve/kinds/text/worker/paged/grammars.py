"""The grammars of a paged engine, which XGrammar compiles in parallel to its steps.

Why XGrammar's native library: it reads the structural tags that requests carry, whoever wrote
them, and admits the same texts as the one in the library's pipeline. That was tried with 190 grammars, of the
tests' dialects, formats, bounds and lengths. 480 random texts written under one were accepted by the other,
and two of each grammar the other way.

llguidance 1.9.1 has no requirements and makes masks of strings faster (0.4 ms instead of 3, of 151,936
tokens). But it reads Lark and JSON schemas. Tags, triggers and excluded texts would need a translation that
is right for all that clients may write, and its lexer is greedy, which EBNF is not.

Two cores of an AMD EPYC, 2026-11-23, tokens drawn uniformly, 49,152 and 151,936 of them (`make bench-masks`):

                                     compile, ms        mask, us
    text with a tool's calls           3       8         1       3
    JSON object                       17      38         8      33
    schema of free strings             2      12         7      28
    schema of strings up to 12        54     191       728    1500
    maxLength 1,000,000              370    1030      7800   13200

It is used without its Python package. The package `xgrammar` imports torch, transformers and triton, which
take gigabytes, and its metadata requires them. It uses them for tensors on GPUs and to read tokenizers of
Hugging Face. Its native library (3 MB) needs neither: it is called through apache-tvm-ffi, which passes a
numpy array by its address. So this module loads that library from the installed package and does not import
the package. The interface is not a public one, therefore the version is exact.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ovserve.engine.host.cpu import below_the_steps
from ovserve.engine.protocol.messages import Compiled, Failed
from ovserve.errors import Internal, InvalidArgument, LoadError
from ovserve.installation import XGRAMMAR, extra
from ovserve.kinds.text.worker.genai.vocabulary import read_vocabulary
from ovserve.kinds.text.worker.paged.masks import (
    JsonBegins,
    JsonKeys,
    Mask,
    Matcher,
    mask_bits,
    mask_of,
    quoting_tokens,
)
from ovserve.llm.grammar.constraint import JSON_MARK, Constraint, digest, structural_tag
from ovserve.llm.grammar.cost import NO_TEXT, PROBE_TOKENS, TOO_MUCH_MEMORY, cheap_tokens

INSTALL = f"pip install --no-deps xgrammar=={XGRAMMAR}"  # without what it requires
_TYPES = "xgrammar.tvm_ffi_binding."


class Library(NamedTuple):
    """Constructors of the library's objects, which have the methods of its C++ classes."""

    tokenizer_info: Any
    compiler: Any
    matcher: Any


@cache
def library() -> Library:
    """Load it, once in a process. Raises LoadError that says what to install."""
    try:
        installed = metadata.distribution("xgrammar")
    except metadata.PackageNotFoundError:
        raise LoadError(f"grammars need the package xgrammar; install it: {INSTALL}") from None
    if installed.version != XGRAMMAR:
        raise LoadError(
            f"grammars need xgrammar {XGRAMMAR}, and {installed.version} is installed; install it: {INSTALL}"
        )
    try:
        with _without_torch():
            import tvm_ffi
            from tvm_ffi.libinfo import load_lib_module

        directory = Path(str(installed.locate_file("xgrammar")))
        load_lib_module("xgrammar", "xgrammar_bindings", extra_lib_paths=[directory])
    except ImportError as error:
        raise LoadError(f"grammars need the package apache-tvm-ffi ({error}); {extra('paged')}") from error
    except (OSError, RuntimeError, ValueError) as error:
        raise LoadError(f"the library of xgrammar {XGRAMMAR} cannot be loaded: {error}") from error
    names = ("TokenizerInfo", "GrammarCompiler", "GrammarMatcher", "CompiledGrammar")
    classes = [tvm_ffi.register_object(_TYPES + name)(type(name, (tvm_ffi.Object,), {})) for name in names]
    return Library(*classes[:3])


@contextmanager
def _without_torch() -> Iterator[None]:
    """apache-tvm-ffi imports torch where it is installed, which takes seconds and memory."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # an import of it raises ImportError
    try:
        yield
    finally:
        del sys.modules["torch"]


RAW_VOCABULARY = 0  # the kind of a vocabulary whose tokens are the bytes that they stand for
_WHERE = re.compile(r"^\[[\d:]+\] \S+\.(?:cc|h):\d+: ")
_CHECK = re.compile(r"^Check failed: .*? is (?:false|true): ")


class Grammar(NamedTuple):
    native: Any
    json_begins: JsonBegins | None  # None: no answer has JSON


class Compiler:
    """Compiles structural tags for one vocabulary. `texts`: the bytes of each token by id, none of a token
    that is not text. Raises LoadError."""

    def __init__(self, texts: Sequence[bytes], eos_ids: Collection[int], logits: int) -> None:
        ends = sorted({id_ for id_ in eos_ids if 0 <= id_ < logits})
        if not ends:
            raise LoadError("grammars need a token that ends an answer, and this model names none")
        self._library: Library = library()
        self.stops: Mask = mask_of(ends, logits)
        texts = [*texts[:logits], *[b""] * (logits - len(texts))]
        info = self._library.tokenizer_info(texts, RAW_VOCABULARY, logits, ends, False)
        self._native = self._library.compiler(info, 1, False, -1)  # on this thread, without a cache
        self._quoting = quoting_tokens(texts)
        self.logits = logits

    def compile(self, structural_tag: str) -> tuple[Grammar | None, str]:
        """Return the compiled grammar and the error, or ""."""
        try:
            native = self._native.compile_structural_tag(structural_tag)
            grammar = Grammar(native, json_begins(structural_tag))
            if not self.matcher(grammar).alive():
                return None, NO_TEXT
        except MemoryError:
            return None, TOO_MUCH_MEMORY
        except Exception as error:  # noqa: BLE001  whatever it was, it is said of this grammar, to its owner
            return None, message_of(error)
        return grammar, ""

    def matcher(self, grammar: Grammar, hidden: Collection[int] = ()) -> Matcher:
        begins = grammar.json_begins
        keys = None if begins is None else JsonKeys(self._quoting, begins)
        return Matcher(self._library.matcher(grammar.native, None, False, -1, None), self.stops, keys, hidden)


class Grammars:
    """Compiled one at a time on another thread than the steps, and only then admitted.

    Where the library is missing each grammar fails and says what to install. Not thread-safe: one caller. How
    many are held is the decision of the client, which knows their sizes and has them dropped.
    """

    def __init__(self, texts: Sequence[bytes], eos_ids: Collection[int], logits: int) -> None:
        self._compiler: Compiler | None = None
        self._missing = ""
        try:
            self._compiler = Compiler(texts, eos_ids, logits)
        except LoadError as error:
            self._missing = error.message
        self._thread = ThreadPoolExecutor(1, "grammar", initializer=below_the_steps)
        self._running: dict[int, tuple[str, Future[tuple[Grammar | None, str]]]] = {}
        self._held: dict[bytes, Grammar] = {}

    # ---- the verbs of an engine

    @property
    def compiling(self) -> bool:
        return bool(self._running)

    def compile(self, id_: int, structural_tag: str, *, validated: bool = False) -> None:
        """`validated` makes no difference: what fails, or leaves no text, fails alone."""
        self._running[id_] = structural_tag, self._thread.submit(self._compile, structural_tag)

    def compiled(self) -> list[Compiled | Failed]:
        """Those that ended since the last call, good or bad."""
        words: list[Compiled | Failed] = []
        for id_ in [id_ for id_, (_, future) in self._running.items() if future.done()]:
            tag, future = self._running.pop(id_)
            grammar, fault = future.result()
            if grammar is None:
                words.append(Failed(id_, "invalid_argument", fault))
            else:
                self._held[digest(tag)] = grammar
                words.append(Compiled(id_, int(grammar.native.memory_size_bytes())))
        return words

    def clear(self) -> None:
        """Drop all; answers under way keep theirs."""
        self._held.clear()

    # ----

    def matcher(self, constraint: Constraint, hidden: Collection[int] = ()) -> Matcher:
        """Raises Internal for a grammar that was not compiled: a step would wait for it; InvalidArgument for
        the beginning of an answer that the grammar does not have."""
        grammar = self._held.get(digest(structural_tag(constraint.format)))
        if grammar is None or self._compiler is None:
            raise Internal("this grammar was not compiled before")
        matcher, param = self._compiler.matcher(grammar, hidden), constraint.param
        if not matcher.begin(constraint.begun):
            begun = constraint.begun[:200]
            raise InvalidArgument.at(
                param, f"no answer in this format begins with the last message, {begun!r}"
            )
        return matcher

    def _compile(self, structural_tag: str) -> tuple[Grammar | None, str]:
        return (None, self._missing) if self._compiler is None else self._compiler.compile(structural_tag)


def json_begins(structural_tag: str) -> JsonBegins | None:
    """Return where the answers of a valid structural tag have JSON, which the server's schemas mark."""
    before: set[str] = set()
    _follow(msgspec.json.decode(structural_tag).get("format"), {""}, before)
    if not before:
        return None
    texts = sorted((text.encode() for text in before if text), key=len, reverse=True)
    pattern = re.compile(b"|".join(map(re.escape, texts)) or b"(?!)")
    return JsonBegins("" in before, pattern, max(map(len, texts), default=0))


def _follow(form: Any, before: set[str], before_json: set[str]) -> set[str]:
    """Return the texts that what follows the format comes after, with those that the format itself comes
    after; "" is the start of the answer. Add to `before_json` those of JSON."""
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "json_schema" or (kind == "grammar" and str(form.get("grammar")).startswith(JSON_MARK)):
        before_json |= before
        return set()
    if kind == "sequence":
        for element in form["elements"]:
            before = _follow(element, before, before_json)
        return before
    if kind == "tag":
        after = _follow(form["content"], _texts(form.get("begin")) or before, before_json)
        return _texts(form.get("end")) or after
    if kind in ("or", "triggered_tags", "tags_with_separator"):
        before = before | _texts(form.get("separator"))
        elements = form["elements" if kind == "or" else "tags"]
        return set().union(*(_follow(element, before, before_json) for element in elements))
    if kind == "const_string":
        return _texts(form.get("value")) or before
    return before if kind in ("grammar", "regex") else set()  # which may be a gap, or nothing


def _texts(value: Any) -> set[str]:
    values = value if isinstance(value, list) else [value]
    return {text for text in values if isinstance(text, str) and text}


def message_of(error: Exception) -> str:
    """Return the library's sentence, without the time, file and line before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = _CHECK.sub("", _WHERE.sub("", lines[0])) if lines else type(error).__name__
    return text.removeprefix("Invalid structural tag error: ")


# Proves grammars of paged engines, in a process of its own, with the library that will make their masks.


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
        with cheap_tokens():
            return _probe(compiler.matcher(grammar), compiler.logits)

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
