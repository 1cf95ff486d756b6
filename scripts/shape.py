"""Counts that say how much there is to understand: `python -m scripts.shape` prints them.

`tests/test_shape.py` holds each to a number that may only fall.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ovserve"
SHORT_LINES = 100
# Names that say what happened to an object, and not what it is.
PARTICIPLES = frozenset(
    [
        "asked",
        "came",
        "chosen",
        "done",
        "drawn",
        "fetched",
        "found",
        "gained",
        "given",
        "got",
        "kept",
        "known",
        "left",
        "made",
        "meant",
        "named",
        "put",
        "read",
        "said",
        "seen",
        "sent",
        "shown",
        "taken",
        "told",
        "took",
        "tried",
        "used",
        "wanted",
        "won",
        "written",
    ]
)


def files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if not path.name.endswith("_pb2.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def import_graph() -> dict[str, frozenset[str]]:
    """Return the modules that each module imports, type-checking imports and those within functions included."""
    modules = {module_name(path): path for path in files()}
    graph = {}
    for name, path in modules.items():
        imported = set()
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    imported.add(inner if inner in modules else node.module)
        graph[name] = frozenset(imported & modules.keys() - {name})
    return graph


def circles() -> list[list[str]]:
    """Return the groups of modules that import each other, by Tarjan's algorithm."""
    graph, index, low = import_graph(), dict[str, int](), dict[str, int]()
    stack: list[str] = []
    groups = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                groups.append(sorted(group))

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return groups


def single_importers() -> tuple[list[str], list[str]]:
    """Return the modules that one other module imports, and of these the short ones in its folder."""
    importers = defaultdict(list)
    for name, imported in import_graph().items():
        for other in imported:
            importers[other].append(name)
    lines = {module_name(path): path.read_text().count("\n") for path in files()}
    single = sorted(name for name, others in importers.items() if len(others) == 1)
    folder = {name: name.rpartition(".")[0] for name in lines}
    short = [n for n in single if lines[n] < SHORT_LINES and folder[n] == folder[importers[n][0]]]
    return single, short


@cache
def bases() -> dict[str, list[str]]:
    """Return the base classes of each class, by name alone."""
    return {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for path in files()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
    }


def single_subclass_bases() -> list[str]:
    known = bases()
    subclasses = Counter(base for found in known.values() for base in found if base in known)
    return sorted(name for name, count in subclasses.items() if count == 1)


def inheritance_depth() -> tuple[int, str]:
    """Return the length of the longest chain of our own classes, and its last class."""
    known = bases()

    def depth(name: str, seen: frozenset[str] = frozenset()) -> int:
        parents = [base for base in known[name] if base in known and base not in seen]
        return 1 + max((depth(base, seen | {name}) for base in parents), default=0)

    return max((depth(name), name) for name in known)


def participles() -> Counter[str]:
    """Count variables and functions that are called by a bare participle."""
    counts: Counter[str] = Counter()
    for path in files():
        for node in ast.walk(tree(path)):
            name = ""
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = node.name
            elif isinstance(node, ast.arg):
                name = node.arg
            if name.strip("_") in PARTICIPLES:
                counts[name.strip("_")] += 1
    return counts


def bare_constants() -> list[str]:
    """Return numeric constants of a module that are called by one word, without object or unit."""
    found = []
    for path in files():
        for node in tree(path).body:
            if isinstance(node, ast.Assign) and is_number(node.value):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
                one_word = [name for name in names if name.isupper() and "_" not in name.strip("_")]
                found += [f"{module_name(path)}.{name}" for name in one_word]
    return found


def is_number(node: ast.expr) -> bool:
    """Return whether an expression is a number, such as 5, -1.5, 4 << 20 or 60 * SAMPLES_PER_SECOND."""
    if isinstance(node, ast.BinOp):
        return is_number(node.left) or is_number(node.right)
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def shape() -> dict[str, int]:
    """Return every static count by its name."""
    lines = [path.read_text().count("\n") for path in files()]
    single, short = single_importers()
    return {
        "files": len(lines),
        "lines": sum(lines),
        "folders": len({path.parent for path in files()}),
        "top-level packages": len(
            {path.relative_to(PACKAGE).parts[0] for path in files() if path.parent != PACKAGE}
        ),
        "modules with one importer": len(single),
        f"of these under {SHORT_LINES} lines, in its folder": len(short),
        "base classes with one subclass": len(single_subclass_bases()),
        "depth of inheritance": inheritance_depth()[0],
        "circles among files": len(circles()),
        "names that are a bare participle": participles().total(),
        "numeric constants of one word": len(bare_constants()),
    }


def rows() -> Iterator[str]:
    for name, count in shape().items():
        yield f"{name:48} {count:>8,}"


if __name__ == "__main__":
    print("\n".join(rows()))
