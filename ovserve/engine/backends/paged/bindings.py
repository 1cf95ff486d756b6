"""XGrammar's native library, without its Python package.

The package `xgrammar` imports torch, transformers and triton, which take gigabytes, and its metadata requires
them. It uses them for tensors on GPUs and to read tokenizers of Hugging Face. Its native library (3 MB) needs
neither: it is called through apache-tvm-ffi, which passes a numpy array by its address. So this
module loads that library from the installed package and does not import the package. The interface is
not a public one, therefore the version is exact.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from ovserve.errors import LoadError
from ovserve.installation import XGRAMMAR, extra

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
    made = [tvm_ffi.register_object(_TYPES + name)(type(name, (tvm_ffi.Object,), {})) for name in names]
    return Library(*made[:3])


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
