"""The file of a handler, as far as it can be checked without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ovserve.graph import Node
from ovserve.kinds.python.spec import MODEL_CLASS, PythonNode, PythonSpec


def handler_path(node: Node, text: str) -> Path:
    """Return the file that the option names, relative to the graph's directory. Raises LoadError."""
    field = "handler_path"
    if not text:
        raise node.error("required, but missing", field)
    if "\0" in text:
        raise node.error("holds a NUL character", field)
    path = (node.config.base / text).absolute()
    if path.suffix != ".py":
        raise node.error(f"expected the path of a .py file, got {text!r}", field, text)
    if not path.is_file():
        raise node.error(f"{path} does not exist", field, text)
    return path


def check_handler(node: Node, handlers: Iterable[PythonNode]) -> None:
    """Compile the files and look for their class. Raises LoadError naming the first that is wrong."""
    for handler in handlers:
        fault = _fault(Path(handler.handler))
        if fault:
            names = [each.name for each in node.config.message.node]
            raise replace(node, name=handler.name, position=names.index(handler.name)).error(
                fault, "handler_path"
            )


def notes(spec: PythonSpec) -> list[str]:
    """Return a line for each node, for `ovserve check`."""
    return [
        f"Python node {node.name!r} calls {node.handler}, "
        + (f"{node.call_timeout:g} s at most" if node.call_timeout else "without a time limit")
        for node in spec.nodes
    ]


def _fault(path: Path) -> str:
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    except (SyntaxError, ValueError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else 0
        return f"{path}:{line or 1}: {error.msg if isinstance(error, SyntaxError) else error}"
    defined: set[str] = set()
    for statement in ast.walk(tree):
        if isinstance(statement, ast.ClassDef):
            defined.add(statement.name)
            if statement.name == MODEL_CLASS and not statement.bases and not _has_execute(statement):
                return f"{path}:{statement.lineno}: {MODEL_CLASS} has no method execute"
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            defined |= {(alias.asname or alias.name) for alias in statement.names}
        elif isinstance(statement, ast.Name) and isinstance(statement.ctx, ast.Store):
            defined.add(statement.id)
    return "" if {MODEL_CLASS, "*"} & defined else f"{path} defines no class {MODEL_CLASS}"


def _has_execute(statement: ast.ClassDef) -> bool:
    """Return whether a class without bases has the attribute; a decorator may add it."""
    if statement.decorator_list:
        return True
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return "execute" in names or any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "execute"
        for node in statement.body
    )
