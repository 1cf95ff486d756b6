"""Map calculator names to classes: shipped ones, entry points, and a graph directory's own `calculators.py`.

A Registry is an object of the server, not a global: `@calculator` only writes the name onto the
class, and a registry is filled from modules. So two graphs whose directories both hold a `calculators.py`
never see each other's classes.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from ovserve.errors import LoadError, described
from ovserve.graph.calculator import Calculator
from ovserve.graph.imports import CALCULATORS_FILE, PREFIX, import_calculators
from ovserve.graph.options import check_class
from ovserve.graph.pbtxt.schema import NOT_IN_CPP

ENTRY_POINT_GROUP = "ovserve.calculators"
_MARK = "__calculator_name__"
MISTYPED_SIMILARITY = 0.92  # similarity from which a name is certainly another one with a mistake

C = TypeVar("C", bound=type[Calculator])


def calculator(name: str) -> Callable[[C], C]:
    """Set the name that graph files use for a class. Raises TypeError if its methods do not fit its bases."""

    def mark(cls: C) -> C:
        setattr(cls, _MARK, name)
        check_class(cls)
        return cls

    return mark


def _location(cls: type[Calculator]) -> str:
    """Return the class with its module, or with its file for one of a graph."""
    own = cls.__module__.startswith(PREFIX)
    return f"{cls.__qualname__} in {inspect.getfile(cls) if own else cls.__module__}"


class Registry:
    """Maps names to calculator classes; rejects two classes with one name."""

    def __init__(self, modules: Iterable[ModuleType] = ()) -> None:
        self._classes: dict[str, type[Calculator]] = {}
        for module in modules:
            self.add_module(module)

    def add(self, cls: type[Calculator]) -> None:
        name = vars(cls).get(_MARK)
        if name is None:
            raise LoadError(f"{cls.__module__}.{cls.__qualname__} has no @calculator(name)")
        existing = self._classes.get(name)
        if existing is not None and existing is not cls:
            raise LoadError(
                f"calculator {name!r} is defined twice: by {_location(existing)} and by {_location(cls)}"
            )
        self._classes[name] = cls

    def mapped(self, change: Callable[[type[Calculator]], type[Calculator]]) -> Registry:
        """Return a registry with `change` of each class, by the same names."""
        registry = Registry()
        registry._classes = {name: change(cls) for name, cls in self._classes.items()}
        return registry

    def add_module(self, module: ModuleType) -> int:
        """Add every marked calculator defined in or re-exported by `module`; returns how many."""
        classes = [
            v
            for v in vars(module).values()
            if isinstance(v, type) and issubclass(v, Calculator) and _MARK in vars(v)
        ]
        for cls in classes:
            self.add(cls)
        return len(classes)

    def add_entry_points(self) -> None:
        """Add the calculators of installed packages from `ovserve.calculators` (a class or a module each)."""
        for point in entry_points(group=ENTRY_POINT_GROUP):
            try:
                loaded = point.load()
            except BaseException as exc:
                fault = (
                    f"entry point {point.name!r} of {ENTRY_POINT_GROUP} cannot be loaded: {described(exc)}"
                )
                raise LoadError(fault) from exc
            if isinstance(loaded, ModuleType):
                self.add_module(loaded)
            else:
                self.add(loaded)

    def for_directory(self, directory: Path) -> Registry:
        """Return this registry plus the directory's `calculators.py`, if there is one."""
        path = directory / CALCULATORS_FILE
        if not path.is_file():
            return self
        child = Registry()
        child._classes.update(self._classes)
        if child.add_module(import_calculators(directory)) == 0:
            raise LoadError("defines no class marked with @calculator(name)", file=str(path))
        return child

    def __getitem__(self, name: str) -> type[Calculator]:
        return self._classes[name]

    def __contains__(self, name: str) -> bool:
        return name in self._classes

    @property
    def names(self) -> list[str]:
        return sorted(self._classes)

    def unknown(self, name: str) -> str:
        """Return the error message for an unknown calculator: the nearest name, or what there is instead."""
        near = difflib.get_close_matches(name, self._classes, n=1)
        message = f"{name!r} is not known" + (f" (did you mean {near[0]}?)" if near else "")
        if difflib.get_close_matches(name, near, cutoff=MISTYPED_SIMILARITY):
            return message
        return f"{message}; {NOT_IN_CPP} (docs/calculators.md); known: {', '.join(self.names)}"
