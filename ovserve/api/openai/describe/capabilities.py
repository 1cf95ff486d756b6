"""GET capabilities: what each model's endpoints do with every parameter. Called by `http/routes/describe.py`.

The rows are those of docs/api.md, narrowed by the model: its limits, its own defaults, its chat template.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from ovserve.api.openai.common import encode
from ovserve.api.openai.describe.operation import Operation, doc
from ovserve.api.openai.describe.parameters import Parameter, parameters
from ovserve.llm.model import ModelContext
from ovserve.llm.prompt.chat_template import ToolPrompt

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
