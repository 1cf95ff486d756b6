"""Compiler and place of the kernels for quantised weights (`kinds/text/worker/kernels/library.py`)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ovserve.engine.host.cpu import Processor, processor

COMPILERS = ("c++", "g++", "clang++")
PACKAGE = Path(__file__).parents[2] / "kinds/text/worker/kernels"
LIBRARY = "packed_matmul-*.so"


def find_compiler() -> str | None:
    """Return the path of a C++ compiler: of CXX, else the first there is."""
    names = (os.environ.get("CXX", ""), *COMPILERS)
    return next((path for name in names if name and (path := shutil.which(name))), None)


def have_kernels(cpu: Processor | None = None) -> bool:
    """Return whether kernels of ours compute here, for which there is a compiler, or on another processor."""
    if cpu is not None and cpu != processor():
        return cpu.has_kernels  # of a machine that this one prepares a model for
    compiled = any(any(directory.glob(LIBRARY)) for directory in kernel_directories())
    return processor().has_kernels and (find_compiler() is not None or compiled)


def kernel_directories() -> tuple[Path, Path]:
    """Return the package's directory, where an image of a container has them, and the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return PACKAGE, Path(cache, "ovserve", "kernels")
