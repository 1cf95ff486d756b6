"""A configuration file: its text, JSON or YAML, as a tree of values with line and path; and its schema,
OVMS's as one table, with this server's use of each key.

The tables of `ovserve check --ovms` and of docs/operations.md are made from it.

Every object is closed: an unknown key is a fault, as in OVMS. All faults of a file are reported, not only the
first.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import yaml

from ovserve.errors import LoadError

YAML_SUFFIXES = (".yaml", ".yml")
MAX_DEPTH = 64
# What may stand in strings of JSON, and not in YAML or only as the end of a line.
_NOT_YAML = re.compile("[^\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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
    """Parse a text with PyYAML, which keeps positions. A file named .json is parsed as JSON first, so that
    only JSON is accepted, and its values are JSON's: PyYAML leaves the two halves of an escaped character
    apart, which is how json.dump writes one beyond U+FFFF.

    Raises LoadError with file and line: not UTF-8, JSON or YAML, or a key that is not text or
    occurs twice."""
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise LoadError(f"not UTF-8 text: {error.reason}", file=file, line=line) from error
    json_text = "" if file.endswith(YAML_SUFFIXES) else decoded
    if not file.endswith(YAML_SUFFIXES):
        _check_json(decoded, file)
        decoded = _NOT_YAML.sub(" ", decoded)
    try:
        root = yaml.compose(decoded, Loader=yaml.SafeLoader)
        if root is None:
            raise LoadError("the file is empty", file=file)
        return _Tree(file, json_text).value(root, "", 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 0
        raise LoadError(f"not YAML: {error.problem or error.context}", file=file, line=line) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise LoadError(f"not YAML: {error}", file=file) from error


def _check_json(text: str, file: str) -> None:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise LoadError(
            f"not JSON: {error.msg} (column {error.colno})", file=file, line=error.lineno
        ) from error
    except RecursionError as error:
        raise LoadError("nested too deeply", file=file) from error


class _Tree:
    def __init__(self, file: str, json_text: str) -> None:
        """`json_text` is the file itself, of the same length as what was parsed; "" for YAML."""
        self._file, self._json_text = file, json_text
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
        try:
            if self._json_text:
                value = json.loads(self._json_text[node.start_mark.index : node.end_mark.index])
            else:
                value = self._scalars.construct_object(node)
            if isinstance(value, str) and b"\0" in value.encode():
                raise ValueError("text with the null character, which no name and no path can have")
        except (yaml.YAMLError, ValueError) as error:
            line = node.start_mark.line + 1
            kind = "JSON" if self._json_text else "YAML"
            raise LoadError(f"not {kind}: {error}", file=self._file, line=line) from error
        return value


_WORDS: dict[type, str] = {str: "text", bool: "true or false", int: "a whole number", dict: "an object"}


class Fault(NamedTuple):
    line: int
    text: str  # begins with the path of the value


class Use(NamedTuple):
    """A key in the file. `effect` is why it has none; empty if it is supported."""

    line: int
    path: str
    effect: str


class Object(msgspec.Struct, frozen=True):
    keys: Mapping[str, Key]
    required: tuple[str, ...] = ()


class List(msgspec.Struct, frozen=True):
    item: Object | type


@dataclass(frozen=True)
class Key:
    """One key. `holds` object: any value, which is not checked here. `effect` as in Use; `plain` is that for
    a plain model."""

    holds: Object | List | type
    effect: str = field(default="", kw_only=True)
    plain: str = field(default="", kw_only=True)


_PLAIN = "it is for plain models, and this entry is a graph"
_LOADER = "there are no custom loaders here"
_REMOVED = "OVMS 2026.3 has removed it; a model's state lasts for one request"
_NODE = "a graph has it in its graph.pbtxt: the field `{}` of the node's options"
_NO_DAG = "there are no DAG pipelines here; write the graph as graph.pbtxt"

_GRAPH_KEYS = {
    **dict.fromkeys(("name", "base_path", "graph_path", "subconfig", "group_name", "warmup_file"), Key(str)),
    "idle_unload_timeout_seconds": Key(int),
}
ENTRY = Object(
    _GRAPH_KEYS
    | {
        "target_device": Key(str, effect=_NODE.format("device")),
        "plugin_config": Key(dict, effect=_NODE.format("plugin_config")),
        "allow_cache": Key(bool, effect=_NODE.format("plugin_config") + ", CACHE_DIR"),
        "model_version_policy": Key(dict, effect="a graph has one version"),
        "nireq": Key(int, effect="the engine batches continuously, it has no pool of requests"),
        **dict.fromkeys(
            (
                "batch_size",
                "shape",
                "layout",
                "color_format",
                "isolation",
                "dynamic_batching",
                "fixed_shapes",
                "mean",
                "scale",
                "precision",
            ),
            Key(object, effect=_PLAIN),
        ),
        "custom_loader_options": Key(object, effect=_LOADER, plain=_LOADER),
        **dict.fromkeys(
            ("stateful", "low_latency_transformation", "max_sequence_number", "idle_sequence_cleanup"),
            Key(object, effect=_REMOVED, plain=_REMOVED),
        ),
    },
    ("name",),
)
_METRICS = Object({"enable": Key(bool), "metrics_list": Key(List(str))}, ("enable",))
_MODELS = Key(List(Object({"config": Key(ENTRY)}, ("config",))))
FILE = Object(
    {
        "model_config_list": _MODELS,
        "mediapipe_config_list": Key(List(Object(_GRAPH_KEYS, ("name",)))),
        "idle_unload_timeout_seconds": Key(int),
        "monitoring": Key(Object({"metrics": Key(_METRICS)})),
        "pipeline_config_list": Key(List(object), effect=_NO_DAG),
        "custom_loader_config_list": Key(List(object), effect=_LOADER),
        "custom_node_library_config_list": Key(List(object), effect=_NO_DAG),
    }
)
SUBCONFIG = Object({"model_config_list": _MODELS})


def faults(value: Value, schema: Object) -> list[Fault]:
    """Return all faults, in the order of the file."""
    return sorted(_faults(value, schema), key=lambda fault: fault.line)


def uses(value: Value, schema: Object, is_plain: Callable[[Value], bool] = lambda entry: False) -> list[Use]:
    """Return every key of a valid file, down to those without an effect of their own below.

    `is_plain` distinguishes an entry of a plain model from that of a graph.
    """
    return list(_uses(value, schema, is_plain))


def _faults(value: Value, schema: Object | List | type) -> Iterator[Fault]:
    if isinstance(schema, Object):
        if not isinstance(value.data, dict):
            yield _wrong(value, "an object")
            return
        for name, inner in value.data.items():
            key = schema.keys.get(name)
            if key is None:
                yield _unknown(value, name, schema)
            else:
                yield from _faults(inner, key.holds)
        for name in schema.required:
            if name not in value.data:
                yield Fault(value.line, f"{value.path or 'the file'}: {name!r} is required")
    elif isinstance(schema, List):
        if not isinstance(value.data, list):
            fault = _wrong(value, "a list")
            yield fault._replace(text=f"{fault.text}{_example(schema)}")
            return
        for inner in value.data:
            yield from _faults(inner, schema.item)
    elif schema is not object and (
        not isinstance(value.data, schema) or (schema is int and isinstance(value.data, bool))
    ):
        yield _wrong(value, _WORDS[schema])


def _uses(value: Value, schema: Object | List | type, is_plain: Callable[[Value], bool]) -> Iterator[Use]:
    if isinstance(schema, Object):
        plain = schema is ENTRY and is_plain(value)
        for name, inner in value.data.items():
            key = schema.keys[name]
            effect = key.plain if plain else key.effect
            if effect or not isinstance(key.holds, Object | List):
                yield Use(value.keys[name], inner.path, effect if inner.data not in ([], {}) else "")
            else:
                yield from _uses(inner, key.holds, is_plain)
    elif isinstance(schema, List):
        for inner in value.data:
            yield from _uses(inner, schema.item, is_plain)


def _example(schema: List) -> str:
    if not isinstance(schema.item, Object) or not schema.item.required:
        return ""
    (name, *_) = schema.item.required
    inner = '{"name": "m", "base_path": "m"}' if isinstance(schema.item.keys[name].holds, Object) else '"m"'
    return f'; an example is [{{"{name}": {inner}}}]'


def _wrong(value: Value, expected: str) -> Fault:
    return Fault(value.line, f"{value.path or 'the file'}: expected {expected}, got {_display(value)}")


def _unknown(value: Value, name: str, schema: Object) -> Fault:
    near = difflib.get_close_matches(name, schema.keys, n=1)
    hint = f" (did you mean {near[0]}?)" if near else f"; known: {', '.join(schema.keys)}"
    return Fault(value.keys[name], f"{value.path or 'the file'}: unknown key {name!r}{hint}")


def _display(value: Value) -> str:
    if isinstance(value.data, dict):
        return "an object"
    return "a list" if isinstance(value.data, list) else repr(value.data)
