"""Map calculator names to classes: shipped ones, entry points, and a graph directory's own `calculators.py`.

A Registry is an object of the server, not a global: `@calculator` only writes the name onto the
class, and a registry is filled from modules. So two graphs whose directories both hold a `calculators.py`
never see each other's classes.
"""

from __future__ import annotations

import builtins
import difflib
import hashlib
import inspect
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import entry_points
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from ovserve.errors import LoadError, described
from ovserve.graph.calculator import Calculator, Contract
from ovserve.graph.config import PROTO_SUFFIX
from ovserve.graph.node import Node
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


class Registry(dict[str, type[Calculator]]):
    """Maps names to calculator classes; rejects two classes with one name."""

    def __init__(self, modules: Iterable[ModuleType] = ()) -> None:
        super().__init__()
        for module in modules:
            self.add_module(module)

    def add(self, cls: type[Calculator]) -> None:
        name = vars(cls).get(_MARK)
        if name is None:
            raise LoadError(f"{cls.__module__}.{cls.__qualname__} has no @calculator(name)")
        existing = self.get(name)
        if existing is not None and existing is not cls:
            raise LoadError(
                f"calculator {name!r} is defined twice: by {_location(existing)} and by {_location(cls)}"
            )
        self[name] = cls

    def mapped(self, change: Callable[[type[Calculator]], type[Calculator]]) -> Registry:
        """Return a registry with `change` of each class, by the same names."""
        registry = Registry()
        registry.update({name: change(cls) for name, cls in self.items()})
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
        child.update(self)
        if child.add_module(import_calculators(directory)) == 0:
            raise LoadError("defines no class marked with @calculator(name)", file=str(path))
        return child

    @property
    def names(self) -> list[str]:
        return sorted(self)

    def unknown(self, name: str) -> str:
        """Return the error message for an unknown calculator: the nearest name, or what there is instead."""
        near = difflib.get_close_matches(name, self, n=1)
        message = f"{name!r} is not known" + (f" (did you mean {near[0]}?)" if near else "")
        if difflib.get_close_matches(name, near, cutoff=MISTYPED_SIMILARITY):
            return message
        return f"{message}; {NOT_IN_CPP} (docs/calculators.md); known: {', '.join(self.names)}"


# Import a graph's `calculators.py` with the modules next to it, apart from those of other graphs.
#
# `import helper` in `calculators.py` finds `helper.py` or `helper/__init__.py` in the same directory before
# anything installed, as in a script that is run there. But two graphs may each have a `helper.py`, and an
# edited one must be new after a reload. So the directory is imported as a package whose name holds a digest
# of its sources, and imports of those modules, also in the helpers themselves, are redirected into it.
#
# Whatever an author's code raises fails its graph or its request. That includes what would end the whole
# process in plain Python: SystemExit of a `sys.exit()`, KeyboardInterrupt, and a CancelledError without a
# cancellation.


def load_error(error: BaseException, files: Collection[Path], otherwise: Path) -> LoadError:
    """Return the LoadError of authors' code, at the innermost line that is in one of their files."""
    lines = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        lines.append((error.filename or "", error.lineno or 0))
    own = {str(path) for path in files}
    file, line = next(((f, n) for f, n in reversed(lines) if f in own), (str(otherwise), 0))
    return LoadError(described(error), file=file, line=line)


def innermost(error: BaseException, directory: Path | None = None) -> str:
    """Return FILE:LINE of the innermost line in `directory`, or where the error was raised; "" if unknown."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if directory is not None and Path(frame.filename).parent == directory]
    return f"{(own or frames)[-1].filename}:{(own or frames)[-1].lineno}" if frames else ""


def contract_of(node: Node, cls: type[Calculator]) -> Contract:
    """Return the calculator's contract for the node; any other exception becomes a LoadError."""
    try:
        return cls.get_contract(node)
    except LoadError:
        raise
    except BaseException as exc:
        at = f" ({place})" if (place := innermost(exc, node.config.base)) else ""
        fault = f"{node.calculator}: get_contract() raised {described(exc)}{at}"
        raise node.error(fault, "calculator") from exc


CALCULATORS_FILE = "calculators.py"
MAX_FILES = 1000  # of a directory that does not belong to a graph, such as a home directory
PREFIX = "ovserve_graph_"
_TESTS = ("test_", "conftest.py")


def author_files(directory: Path) -> list[Path]:
    """Return the files of a graph's authors that decide what it does: modules, packages, `.proto` files.

    Tests are not among them, and nothing is without a `calculators.py`.
    """
    protos = sorted(directory.glob(f"*{PROTO_SUFFIX}"))
    if not (directory / CALCULATORS_FILE).is_file():
        return protos
    return [*modules(directory), *protos][:MAX_FILES]


def modules(directory: Path) -> list[Path]:
    """Return the modules of a directory, and those of its packages; no tests."""
    paths = []
    for path in sorted(directory.iterdir()):
        if path.suffix == ".py" and not path.name.startswith(_TESTS):
            paths.append(path)
        elif path.is_dir() and path.name.isidentifier() and (path / "__init__.py").is_file():
            paths += modules(path)
        if len(paths) > MAX_FILES:
            break
    return paths


def import_calculators(directory: Path) -> ModuleType:
    """Import the directory's `calculators.py`. Raises LoadError with the line of the file that raised."""
    sources = {path: path.read_bytes() for path in author_files(directory) if path.suffix == ".py"}
    digest = hashlib.sha256(str(directory).encode())
    for path, source in sources.items():
        digest.update(b"\0%s\0" % str(path).encode())
        digest.update(source)
    package = PREFIX + digest.hexdigest()[:16]
    name = f"{package}.{Path(CALCULATORS_FILE).stem}"
    if name in sys.modules:
        return sys.modules[name]
    authors = _Authors(package, directory, sources)
    try:
        return authors.load(name)
    except BaseException as exc:
        for half in [module for module in sys.modules if module.partition(".")[0] == package]:
            del sys.modules[half]
        raise load_error(exc, sources, directory / CALCULATORS_FILE) from exc


class _Authors:
    """The modules of one directory at one moment: their sources were read once, and stay as they are."""

    def __init__(self, package: str, directory: Path, sources: Mapping[Path, bytes]) -> None:
        self.package, self._directory, self._sources = package, directory, sources
        top = ModuleType(package, "The modules of a graph's directory.")
        top.__path__ = [str(directory)]
        sys.modules[package] = top
        self._import = _importer(self)

    def load(self, name: str) -> ModuleType:
        """Import a module by its full name and the packages around it. Raises what its code raises."""
        parts = name.split(".")
        for n in range(2, len(parts) + 1):
            self._load(".".join(parts[:n]))
        return sys.modules[name]

    def find(self, name: str) -> Path | None:
        """Return the file of a module by its full name, if this directory has it."""
        parts = name.split(".")[1:]
        base = self._directory.joinpath(*parts)
        for path in (base / "__init__.py", base.with_name(f"{base.name}.py")):
            if path in self._sources:
                return path
        return None

    def _load(self, name: str) -> None:
        if name in sys.modules:
            return
        path = self.find(name)
        if path is None:
            short = name.removeprefix(f"{self.package}.")
            raise ModuleNotFoundError(f"No module named {short!r} next to {CALCULATORS_FILE}", name=short)
        loader = _Loader(name, str(path), self._sources[path])
        spec = ModuleSpec(name, loader, origin=str(path), is_package=path.name == "__init__.py")
        spec.has_location = True
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(str(path.parent))
        module = module_from_spec(spec)
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self._import}
        sys.modules[name] = module
        loader.exec_module(module)
        around, _, last = name.rpartition(".")
        setattr(sys.modules[around], last, module)

    def load_parts(self, name: str, fromlist: Sequence[str]) -> None:
        """Import a module, and those of `fromlist` that are modules below it."""
        self.load(name)
        for each in fromlist:
            if not hasattr(sys.modules[name], each) and self.find(f"{name}.{each}") is not None:
                self.load(f"{name}.{each}")


class _Loader(SourceFileLoader):
    """Compiles a given source: never a cached one, which differs from an edit by its second and size only."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self._source, self.path)


def _importer(authors: _Authors) -> Callable[..., ModuleType]:
    """Return the `__import__` of the authors' modules."""

    def load(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        names = fromlist or ()
        if level:  # relative to the package of the importing module, which is one of ours
            around = str((globals or {}).get("__package__") or authors.package).split(".")
            full = ".".join([*around[: len(around) - level + 1], *([name] if name else [])])
            authors.load_parts(full, names)
            return sys.modules[full]
        top = name.partition(".")[0]
        if authors.find(f"{authors.package}.{top}") is None:
            return builtins.__import__(name, globals, locals, names, 0)
        full = f"{authors.package}.{name}"
        authors.load_parts(full, names)
        return sys.modules[full if names else f"{authors.package}.{top}"]

    return load
