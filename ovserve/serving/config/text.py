"""Parses the text of a configuration file, JSON or YAML, into a tree of values with line and path.

PyYAML scans both, because it keeps positions: JSON is YAML except for tabs, which cannot stand in
its strings. A file named .json is parsed as JSON first, so that only JSON is accepted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import yaml

from ovserve.errors import LoadError

YAML_SUFFIXES = (".yaml", ".yml")
MAX_DEPTH = 64


@dataclass(frozen=True)
class Value:
    """One value. `data` is a dict of str to Value, a list of Value, or a scalar. Lines count from 1.

    `path` is as in `model_config_list[0].config.name`; "" for the whole file. `keys` are the lines of a
    dict's keys.
    """

    data: Any
    line: int
    path: str
    keys: dict[str, int] = field(default_factory=dict)

    @property
    def plain(self) -> Any:
        """Return the data without lines and paths."""
        if isinstance(self.data, dict):
            return {key: value.plain for key, value in self.data.items()}
        return [v.plain for v in self.data] if isinstance(self.data, list) else self.data


def parse(text: bytes, file: str) -> Value:
    """Parse. Raises LoadError with file and line: not UTF-8, JSON or YAML, or a key that is not text or
    occurs twice."""
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise LoadError(f"not UTF-8 text: {error.reason}", file=file, line=line) from error
    as_json = not file.endswith(YAML_SUFFIXES)
    if as_json:
        decoded = _checked_json(decoded, file)
    try:
        root = yaml.compose(decoded, Loader=yaml.SafeLoader)
        if root is None:
            raise LoadError("the file is empty", file=file)
        return _Tree(file, as_json).value(root, "", 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 0
        raise LoadError(f"not YAML: {error.problem or error.context}", file=file, line=line) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise LoadError(f"not YAML: {error}", file=file) from error


def _checked_json(text: str, file: str) -> str:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise LoadError(
            f"not JSON: {error.msg} (column {error.colno})", file=file, line=error.lineno
        ) from error
    except RecursionError as error:
        raise LoadError("nested too deeply", file=file) from error
    return text.replace("\t", " ")


class _Tree:
    def __init__(self, file: str, as_json: bool) -> None:
        self._file, self._as_json = file, as_json
        self._scalars = yaml.SafeLoader("")

    def value(self, node: yaml.Node, path: str, depth: int) -> Value:
        line = node.start_mark.line + 1
        if depth > MAX_DEPTH:
            raise LoadError(f"{path}: nested more than {MAX_DEPTH} deep", file=self._file, line=line)
        if isinstance(node, yaml.SequenceNode):
            items = [self.value(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(node.value)]
            return Value(items, line, path)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        return Value(self._scalar(node), line, path)

    def _mapping(self, node: yaml.MappingNode, path: str, depth: int) -> Value:
        data: dict[str, Value] = {}
        keys: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = self._scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            where = path or "the file"
            if not isinstance(key, str):
                raise LoadError(f"{where}: a key must be text, got {key!r}", file=self._file, line=line)
            if key in data:
                raise LoadError(
                    f"{where}: key {key!r} occurs twice, first in line {keys[key]}",
                    file=self._file,
                    line=line,
                )
            data[key] = self.value(value_node, f"{path}.{key}" if path else key, depth + 1)
            keys[key] = line
        return Value(data, node.start_mark.line + 1, path, keys)

    def _scalar(self, node: yaml.Node) -> Any:
        if self._as_json and getattr(node, "style", None) is None:
            return json.loads(node.value)  # YAML reads 1e3 as text, JSON as a number
        try:
            return self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            line = node.start_mark.line + 1
            raise LoadError(f"not YAML: {error}", file=self._file, line=line) from error
