"""The tools of a request, and untyped text turned into JSON by their schemas.

Dialects with bare text between tags need it (qwen3coder, glm45, minimax, ...). A string
stays as written; other text is JSON if it is JSON, a Python literal if it is one, else a string after all:
a model's mistake must not lose its text. Numbers keep their spelling, because JSON text is built, not values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ovserve.llm.parsing.core.json_scan import as_json, quote
from ovserve.llm.parsing.core.literal import python_literal

_MAX_REFS = 16
_FIRST = {
    "object": "{",
    "array": "[",
    "boolean": "tf",
    "integer": "-0123456789",
    "number": "-0123456789",
    "null": "n",
}
_JSON_TYPES = {
    dict: "object",
    list: "array",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    type(None): "null",
}


class Tools:
    """The request's tools by name. It tolerates every shape: the body was checked elsewhere, or not at
    all."""

    def __init__(self, tools: Iterable[Any] = ()) -> None:
        self._schemas: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = tool.get("function", tool) if isinstance(tool, Mapping) else None
            if isinstance(function, Mapping) and isinstance(function.get("name"), str):
                parameters = function.get("parameters")
                self._schemas[function["name"]] = parameters if isinstance(parameters, Mapping) else {}

    def __contains__(self, name: str) -> bool:
        return name in self._schemas

    def lacks(self, name: str) -> bool:
        """Return whether the tools are known, and none has this name."""
        return bool(self._schemas) and name not in self._schemas

    def parameters(self, tool: str) -> Mapping[str, Any]:
        """Return the parameter names and schemas that the tool declares."""
        properties = self._resolve(tool, self._schemas.get(tool)).get("properties")
        return properties if isinstance(properties, Mapping) else {}

    def types(self, tool: str, parameter: str) -> frozenset[str]:
        """Return the JSON types that the parameter may have; empty if undeclared."""
        types: set[str] = set()
        todo: list[object] = [self.parameters(tool).get(parameter)]
        visited: set[int] = set()
        while todo:  # each schema once: unions of references could name one a million times
            schema = self._resolve(tool, todo.pop())
            if id(schema) not in visited:
                visited.add(id(schema))
                types |= _types(schema, todo)
        return frozenset(types)

    def _resolve(self, tool: str, schema: object) -> Mapping[str, Any]:
        for _ in range(_MAX_REFS):
            if not isinstance(schema, Mapping):
                return {}
            ref = schema.get("$ref")
            if not isinstance(ref, str):
                return schema
            if not ref.startswith("#"):
                return {}
            schema = self._schemas.get(tool)
            for step in ref[1:].split("/")[1:]:
                step = step.replace("~1", "/").replace("~0", "~")
                schema = schema.get(step) if isinstance(schema, Mapping) else None
        return {}


def _types(schema: Mapping[str, Any], todo: list[object]) -> set[str]:
    """Return the types that it names; branches of its unions go to `todo`."""
    types: set[str] = set()
    kind = schema.get("type")
    if isinstance(kind, str):
        types.add(kind)
    elif isinstance(kind, list):
        types.update(k for k in kind if isinstance(k, str))
    elif isinstance(schema.get("enum"), list):
        types.update(_JSON_TYPES.get(type(v), "") for v in schema["enum"])
    elif "const" in schema:
        types.add(_JSON_TYPES.get(type(schema["const"]), ""))
    else:
        unions = [
            schema[union] for union in ("anyOf", "oneOf", "allOf") if isinstance(schema.get(union), list)
        ]
        for branches in unions:
            todo += branches
        if not any(unions) and ("properties" in schema or "additionalProperties" in schema):
            types.add("object")
        if not any(unions) and "items" in schema:
            types.add("array")
    if schema.get("nullable") is True and types:
        types.add("null")
    return types - {""}


def to_json(text: str, types: frozenset[str]) -> str:
    """Return bare text as JSON text. Without types: JSON if it is JSON, else a string."""
    if types == {"string"}:
        return quote(text)
    stripped = text.strip()
    if stripped in ("null", "None") and ("null" in types or not types & {"string"}):
        return "null"
    if stripped.lower() in ("true", "false") and (not types or "boolean" in types):
        return stripped.lower()
    if "string" not in types:
        return _any_json(stripped) or quote(text)
    # A union with strings: another type wins only if the text can be nothing else.
    first = "".join(_FIRST.get(kind, "") for kind in types - {"string", "boolean", "null"})
    if first and stripped[:1] and stripped[0] in first:
        return _any_json(stripped) or quote(text)
    return quote(text)


def _any_json(text: str) -> str | None:
    return as_json(text) or python_literal(text)
