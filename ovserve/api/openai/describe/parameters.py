"""The parameters of an operation, one row each: name, supported / ignored / rejected, reason, type, range.

Derived from the request struct's own JSON schema and the tables the decoder uses (`operation.py`). Called by
GET capabilities with a model, which narrows the rows, and by the writer of docs/api.md without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec

from ovserve.api.openai.describe.operation import IGNORED, REJECTED, SUPPORTED, Operation, Override
from ovserve.llm.model import ModelContext

REF = "#/components/schemas/"
_NOTE = ("description", "default", "title")
_UNCHANGED = Override()


class Parameter(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str  # "stream_options.include_usage", "messages[].role"
    status: str
    why: str = ""
    required: bool = False
    schema: dict[str, Any] = {}  # JSON schema of the value; null is always as good as absent
    default: Any = None  # what absence means; for one model, its own default


def parameters(operation: Operation, model: ModelContext | None = None) -> list[Parameter]:
    """Return the required ones, then the rest in the struct's order, then the rejected by name."""
    if operation.request is None:
        return []
    changes = operation.specialize(model) if model is not None else {}
    rows = [_row(operation, one, changes.get(one.name, _UNCHANGED)) for one in _described(operation.request)]
    needed = {row.name for row in rows if row.required}
    rows_by_name = {
        row.name: row for row in sorted(rows, key=lambda row: row.name.partition(".")[0] not in needed)
    }
    for name, refused in sorted(operation.refused.items()):
        schema = {"enum": list(refused.neutral)} if refused.neutral else {}
        rows_by_name[name] = Parameter(name=name, status=REJECTED, why=refused.why, schema=schema)
    return list(rows_by_name.values())


class _Described(NamedTuple):
    name: str
    schema: dict[str, Any]
    why: str
    required: bool


@cache
def _described(request: Any) -> tuple[_Described, ...]:
    """Return the fields of a body, each name once. It takes 2 ms, and is the same for every model."""
    (root,), components = msgspec.json.schema_components([request], ref_template=REF + "{name}")
    described: dict[str, _Described] = {}
    for name, field, required in _fields(_resolve(root, components), components, "", ()):
        if name not in described:
            plain = _without_null(field)
            schema = {k: v for k, v in plain.items() if k not in _NOTE}
            described[name] = _Described(name, schema, field.get("description", ""), required)
    return tuple(described.values())


def _row(operation: Operation, field: _Described, change: Override) -> Parameter:
    name, schema = field.name, field.schema
    if change.maximum is not None:
        schema = schema | {"maximum": min(change.maximum, schema.get("maximum", change.maximum))}
    default = operation.defaults.get(name) if change.default is None else change.default
    return Parameter(
        name=name,
        status=change.status or (IGNORED if name in operation.reported else SUPPORTED),
        why=change.why or operation.reported.get(name) or field.why,
        required=field.required and name not in operation.optional,
        schema=schema,
        default=default,
    )


def _fields(
    schema: dict[str, Any], components: dict[str, Any], prefix: str, inside: tuple[str, ...]
) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Each property of an object, those of the objects in it after it; recursive types are entered once."""
    for name, field in schema.get("properties", {}).items():
        required = name in schema.get("required", ())
        yield prefix + name, _flat(field), required
        for ref, suffix in _objects(field):
            if ref not in inside:
                yield from _fields(components[ref], components, f"{prefix}{name}{suffix}.", (*inside, ref))


def _objects(schema: dict[str, Any], suffix: str = "") -> Iterator[tuple[str, str]]:
    """The structs a value may be or hold, with what must be appended to its name to get there."""
    if "$ref" in schema:
        yield schema["$ref"].removeprefix(REF), suffix
    for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _objects(one, suffix)
    if isinstance(schema.get("items"), dict):
        yield from _objects(schema["items"], suffix + "[]")


def _flat(schema: Any) -> Any:
    """Replace references: a struct is an object here, and its fields have rows of their own."""
    if isinstance(schema, list):
        return [_flat(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    flat = {k: _flat(v) for k, v in schema.items() if k not in ("$ref", "discriminator")}
    return flat | {"type": "object"} if "$ref" in schema else flat


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    if "enum" in schema:
        return schema | {"enum": [v for v in schema["enum"] if v is not None]}
    kinds = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    kinds = [kind for i, kind in enumerate(kinds) if kind not in kinds[:i]]
    rest = {k: v for k, v in schema.items() if k != "anyOf"}
    return (_without_null(kinds[0]) if len(kinds) == 1 else {"anyOf": kinds} if kinds else {}) | rest


def _resolve(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    return components[schema["$ref"].removeprefix(REF)] if "$ref" in schema else schema
