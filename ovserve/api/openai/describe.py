"""The parameters of an operation, one row each: name, supported / ignored / rejected, reason, type, range.
And GET capabilities: what each model's endpoints do with every parameter.

Rows are derived from the request struct's own JSON schema and the tables the decoder uses (`operation.py`).
The writer of docs/api.md reads them as they are. GET capabilities narrows them by the model: its limits, its
own defaults, its chat template.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from ovserve.api.openai.common import encode
from ovserve.api.openai.operation import IGNORED, REJECTED, SUPPORTED, Operation, Override, doc
from ovserve.llm.chat_template import ToolPrompt
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


SEVERAL_MODELS = (
    "the graph decides for each request which of its models answer; max_model_len is that of the smallest, "
    "parameters and their ranges are those of any model, and usage counts the tokens of all that worked"
)


class EndpointCapabilities(msgspec.Struct, kw_only=True, omit_defaults=True):
    endpoint: Annotated[str, doc("the path without its version")]
    available: Annotated[bool, doc("false where this model cannot answer at all")]
    why: str = ""
    parameters: list[Parameter] = []


class EngineCapabilities(msgspec.Struct, kw_only=True):
    kind: Annotated[
        str, doc("what the engine does: text, paged_text, stateful_text, script, or that of an extension")
    ]
    side_packet: Annotated[str, doc("by which the graph's nodes share it")] = ""
    facts: Annotated[dict[str, Any], doc("of its model, by kind")]


class NodeCapabilities(msgspec.Struct, kw_only=True):
    name: str
    calculator: str
    load_seconds: Annotated[float, doc("that its load() took")]
    facts: Annotated[dict[str, Any], doc("what its state says of itself, by a method facts()")]


class ModelCapabilities(msgspec.Struct, kw_only=True):
    model: str
    state: str
    max_model_len: int | None
    tool_prompt: Annotated[
        ToolPrompt | None,
        doc("how tools reach the model: by its chat template or by a generic text; null: not at all"),
    ] = None
    tool_parser: Annotated[str | None, doc("reads tool calls; null: none, or several models")] = None
    reasoning_parser: Annotated[str | None, doc("parses reasoning; null: none, or several models")] = None
    endpoints: Annotated[
        list[EndpointCapabilities],
        doc("without parameters where they are the graph's own business"),
    ]
    engines: Annotated[list[EngineCapabilities], doc("those that the graph's nodes hold")] = []
    several_models: Annotated[
        str | UnsetType,
        doc("what it means that the graph has more than one language model; absent otherwise"),
    ] = UNSET
    nodes: Annotated[list[NodeCapabilities], doc("the graph's nodes that have loaded something")] = []


OF_TOKENS = ("tokenize", "detokenize", "messages/count_tokens")  # the server answers them without the graph


class Capabilities(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[ModelCapabilities]


def of_model(
    operations: Collection[Operation],
    name: str,
    state: str,
    max_length: int | None,
    contexts: list[ModelContext],
    engines: list[EngineCapabilities],
    declared: Collection[str] = (),
    nodes: Sequence[NodeCapabilities] = (),
) -> ModelCapabilities:
    """`contexts`: of the graph's language models. With several, which one answers is the graph's business, so
    the rows are not specialized. `declared`: the endpoints that the graph's nodes declare."""
    model = contexts[0] if len(contexts) == 1 else None
    described = [o for o in operations if o.request is not None and o.of_models and not o.same_as]
    answers = not declared or "chat/completions" in declared  # else the graph is such as of realtime sessions
    served = [
        o
        for o in described
        if (o.name in declared if o.declared else contexts and (answers or o.name in OF_TOKENS))
    ]
    own = sorted(set(declared) - {o.name.removeprefix("/") for o in operations if o.of_models})
    return ModelCapabilities(
        model=name,
        state=state,
        max_model_len=max_length,
        tool_prompt=model.template.tool_prompt if model is not None and model.template else None,
        tool_parser=model.parsers.tool if model is not None else None,
        reasoning_parser=model.parsers.reasoning if model is not None else None,
        endpoints=[_endpoint(o, model) for o in served]
        + [EndpointCapabilities(endpoint=name, available=True) for name in own],
        engines=engines,
        several_models=SEVERAL_MODELS if len(contexts) > 1 else UNSET,
        nodes=list(nodes),
    )


def _endpoint(operation: Operation, model: ModelContext | None) -> EndpointCapabilities:
    unavailable_reason = operation.unavailable_reason(model) if model is not None else None
    if unavailable_reason is not None:
        return EndpointCapabilities(endpoint=operation.name, available=False, why=unavailable_reason)
    return EndpointCapabilities(
        endpoint=operation.name, available=True, parameters=parameters(operation, model)
    )


def body(models: list[ModelCapabilities]) -> bytes:
    return encode(Capabilities(data=models))


OPERATION = Operation(
    "GET",
    "/v3/capabilities",
    "What each model does with every parameter of every endpoint.",
    answer=Capabilities,
    query={"model": "of this model only"},
)
