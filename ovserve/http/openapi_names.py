"""Schemas as generators of clients want them: short names that are titles too, and arrays that say of what.

msgspec names structs of one name by their module, but keeps the bare name as title, which generators take for
the class. Used by `openapi.py`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

PREFIX = "#/components/schemas/"
RESERVED = {"Response": "ResponseObject"}  # a generated client has a class of this name already


def named(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with every component under a name of its own, and its references changed to it."""
    schemas: dict[str, Any] = document["components"]["schemas"]
    names = _names(list(schemas))
    made: dict[str, Any] = _changed(document, {PREFIX + old: PREFIX + new for old, new in names.items()})
    components = made["components"]["schemas"]
    made["components"]["schemas"] = {
        names[old]: schema | ({"title": names[old]} if "title" in schema else {})
        for old, schema in components.items()
    }
    return made


def exactly(value: Any) -> dict[str, Any]:
    """Return the schema of one value: null, a scalar, or an empty or one-element array or object."""
    match value:
        case None:
            return {"type": "null"}
        case {}:
            return {"type": "object", "maxProperties": 0}
        case []:
            return {"type": "array", "items": {}, "maxItems": 0}
        case [one]:
            return {"type": "array", "items": exactly(one), "minItems": 1, "maxItems": 1}
        case bool():
            return {"type": "boolean", "const": value}
        case "":
            return {"type": "string", "maxLength": 0}
    return {"const": value}


def _names(keys: list[str]) -> dict[str, str]:
    """Return a name per key: `ovserve.api.anthropic.answer.Usage` becomes AnthropicUsage, or with the module
    too where that is taken."""
    short = {key: RESERVED.get(key, key) for key in keys if "." not in key}
    by_package = {key: _joined(key.split(".")[2:3], key) for key in keys if "." in key}
    counts = Counter([*short.values(), *by_package.values()])
    longer = {
        key: name if counts[name] == 1 else _joined(key.split(".")[2:-1], key)
        for key, name in by_package.items()
    }
    return short | longer


def _joined(parts: list[str], key: str) -> str:
    words = [word for part in parts for word in part.split("_")]
    return "".join(word.capitalize() for word in words) + key.rpartition(".")[2]


def _changed(value: Any, references: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_changed(one, references) for one in value]
    if not isinstance(value, dict):
        return references.get(value, value) if isinstance(value, str) else value
    made = {key: _changed(one, references) for key, one in value.items()}
    if made.get("type") == "array" and not made.keys() & {"items", "prefixItems"}:
        made["items"] = {}
    return made
