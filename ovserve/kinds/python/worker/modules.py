"""Loads the files of handlers: each as a module of its own, with its directory first on the path.

Bytecode next to a file is never used: an edit within the same second and of the same size would be missed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any


class Modules:
    """The modules of one process, by the path of the file."""

    def __init__(self) -> None:
        self._known: dict[Path, ModuleType] = {}
        self._directories: list[Path] = []

    def load(self, path: Path) -> ModuleType:
        """Import a file, once. Raises what its code raises."""
        if path not in self._known:
            self._enter(path.parent)
            before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
            try:
                self._known[path] = _imported(path)
            finally:
                sys.dont_write_bytecode = before
        return self._known[path]

    def _enter(self, directory: Path) -> None:
        """Put a directory first. A module of the same name from another one is imported anew from here."""
        if directory in self._directories:
            sys.path.remove(str(directory))
        sys.path.insert(0, str(directory))
        for name in [*_tops(directory)]:
            module = sys.modules.get(name)
            if (
                module is not None
                and _directory(module) in self._directories
                and _directory(module) != directory
            ):
                text = f"module {name!r} exists in {_directory(module)} and in {directory}: each has its own"
                sys.stderr.write(f"{text}\n")
                for each in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
                    del sys.modules[each]
        self._directories.append(directory)


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)


def _imported(path: Path) -> ModuleType:
    is_taken = path.stem in sys.modules or path.stem in sys.stdlib_module_names
    name = f"{path.stem}_of_{path.parent.name}" if is_taken else path.stem
    while name in sys.modules:
        name += "_"
    spec = ModuleSpec(name, _Loader(name, str(path)), origin=str(path))
    spec.has_location = True
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)  # type: ignore[union-attr]  # it has the one given above
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _tops(directory: Path) -> Iterator[str]:
    """Yield names of modules and packages in a directory."""
    for path in directory.iterdir():
        if path.suffix == ".py":
            yield path.stem
        elif (path / "__init__.py").is_file():
            yield path.name


def _directory(module: ModuleType) -> Path:
    """Return the directory that a top-level module or package was imported from."""
    path = Path(getattr(module, "__file__", None) or "/")
    return path.parent.parent if path.name == "__init__.py" else path.parent
