"""/openapi.json: OpenAPI 3.1 of this server, made of the route table and what each API style declares.

Nothing is written twice: paths are the router's, bodies the msgspec structs', error statuses the table of
`errors.py`, rejected parameters the decoder's. A test finds routes that no operation describes.

Schemas are as generators of clients want them: short names that are titles too, and arrays that say of what.
msgspec names structs of one name by their module, but keeps the bare name as title, which generators take for
the class.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from ovserve import __version__
from ovserve.api import anthropic, ollama
from ovserve.api.azure import (
    DEPLOYMENTS,
    EMBEDDINGS,
    FOUNDRY,
    FOUNDRY_INFO,
    INFO,
    UNPROCESSABLE_STATUS,
    VERSION,
    AzureError,
    ModelInfo,
)
from ovserve.api.openai import batches, chat, common, completions, describe
from ovserve.api.openai.chat import OPERATION
from ovserve.api.openai.common import ErrorBody, Model
from ovserve.api.openai.describe import REF
from ovserve.api.openai.operation import Operation
from ovserve.api.openai.responses import request as responses
from ovserve.api.openai.tokenize import (
    CountedTokens,
    DetokenizedText,
    DetokenizeRequest,
    TokenIds,
    TokenizeRequest,
    TokenizerInfo,
)
from ovserve.http.errors import ApiStyle, style_of
from ovserve.http.routes import config, realtime, tensorflow, v2
from ovserve.kinds.encoders import embeddings_api, rerank_api, score_api
from ovserve.kinds.images import api as answers
from ovserve.kinds.speech import api as transcriptions
from ovserve.kinds.voice import api as speech

TOKEN_OPERATIONS = (
    Operation(
        "POST",
        "/v3/tokenize",
        "Text to token ids: with `text` in OVMS's form, with `prompt` or `messages` in vLLM's.",
        answer=(TokenIds, CountedTokens),
        request=TokenizeRequest,
        example={"model": "smollm2", "text": "Hello world"},
        defaults={"pad_to_max_length": False, "padding_side": "right", "add_generation_prompt": True},
    ),
    Operation(
        "POST",
        "/v3/detokenize",
        "Token ids to text.",
        answer=DetokenizedText,
        request=DetokenizeRequest,
        defaults={"skip_special_tokens": False},
    ),
    Operation(
        "GET",
        "/v3/tokenizer_info",
        "What lm-eval's remote tokenizer asks for.",
        answer=TokenizerInfo,
        query={"model": "may be left out when one graph is served"},
    ),
)


_QUERY = {VERSION: "any value makes it a request of Azure's"}
_ANY_VERSION = {VERSION: "any value, or none"}


def _at_root(operation: Operation, what: str, same_as: str = "") -> Operation:
    return dataclasses.replace(
        operation,
        path=f"/{operation.name}",
        summary=f"Azure AI Model Inference's {what} if the request is Azure's, else as /v3/{operation.name}.",
        error=(AzureError, ErrorBody),
        query=_QUERY,
        optional=("model",),
        same_as=same_as,
    )


_CHAT = _at_root(OPERATION, "chat")
_EMBEDDINGS = _at_root(embeddings_api.OPERATION, "embeddings", same_as="embeddings")


def _foundry(operation: Operation) -> Operation:
    return dataclasses.replace(
        operation,
        path=FOUNDRY + operation.path,
        summary=f"As {operation.path} of Azure's, for base addresses that end in {FOUNDRY}.",
        error=AzureError,
        query=_ANY_VERSION,
        same_as=operation.name,
    )


def _deployed(operation: Operation) -> Operation:
    return dataclasses.replace(
        operation,
        path=f"{DEPLOYMENTS}/{{deployment}}/{operation.name}",
        summary=f"As /v3/{operation.name}, of the model that the path names; Azure OpenAI's address.",
        query=_ANY_VERSION,
        optional=("model",),
        same_as=operation.name,
    )


AZURE_OPERATIONS = (
    _CHAT,
    _foundry(_CHAT),
    _EMBEDDINGS,
    _foundry(_EMBEDDINGS),
    *map(_deployed, (OPERATION, embeddings_api.OPERATION, completions.OPERATION, speech.OPERATION)),
    *map(_deployed, (*answers.OPERATIONS, *transcriptions.OPERATIONS)),
    Operation(
        "GET",
        "/v3" + INFO,
        "What Azure's client asks first.",
        answer=ModelInfo,
        error=AzureError,
        query=_ANY_VERSION,
    ),
    Operation(
        "GET",
        FOUNDRY_INFO,
        f"The same if there is an {VERSION}, else the model that is called info.",
        answer=(ModelInfo, Model),
        error=(AzureError, ErrorBody),
        query=_QUERY,
    ),
    Operation(
        "GET",
        FOUNDRY + EMBEDDINGS[0],
        "The model that is called embeddings.",
        answer=Model,
        error=AzureError,
        statuses=(405,),
    ),
)


PREFIX = "#/components/schemas/"
RESERVED = {"Response": "ResponseObject"}  # a generated client has a class of this name already


def with_own_names(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with every component under a name of its own, and its references changed to it."""
    schemas: dict[str, Any] = document["components"]["schemas"]
    names = _names(list(schemas))
    renamed: dict[str, Any] = _changed(document, {PREFIX + old: PREFIX + new for old, new in names.items()})
    components = renamed["components"]["schemas"]
    renamed["components"]["schemas"] = {
        names[old]: schema | ({"title": names[old]} if "title" in schema else {})
        for old, schema in components.items()
    }
    return renamed


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
    converted = {key: _changed(one, references) for key, one in value.items()}
    if converted.get("type") == "array" and not converted.keys() & {"items", "prefixItems"}:
        converted["items"] = {}
    return converted


OPENAPI = Operation("GET", "/openapi.json", "This document.", answer=dict[str, Any])

# Each API style and each part of the server adds its own.
OPERATIONS: tuple[Operation, ...] = (
    chat.OPERATION,
    completions.OPERATION,
    completions.FIM_OPERATION,
    *responses.OPERATIONS,
    *embeddings_api.OPERATIONS,
    *answers.OPERATIONS,
    *speech.OPERATIONS,
    *transcriptions.OPERATIONS,
    *TOKEN_OPERATIONS,
    *common.OPERATIONS,
    *batches.OPERATIONS,
    *anthropic.OPERATIONS,
    *AZURE_OPERATIONS,
    *rerank_api.OPERATIONS,
    *score_api.OPERATIONS,
    *ollama.OPERATIONS,
    describe.OPERATION,
    *v2.OPERATIONS,
    *tensorflow.OPERATIONS,
    *config.OPERATIONS,
    *realtime.OPERATIONS,
    OPENAPI,
)

VERSIONED = "/v3"
FORM = "multipart/form-data"
# What stands for /v3 in a route. "/v3/v1" is what some clients make of a /v3 base address, "" of a bare one;
# "/openai" is Azure's.
VERSIONS = ("/v3", "/v1", "/v3/v1", "", "/openai/v1", "/openai")
Route = tuple[str, re.Pattern[str]]  # method, whole path

DESCRIPTION = """A graph-configured model server for OpenVINO models, OpenAI-compatible.

`null` means absent for every optional parameter. Unknown parameters are not an error: the header
`x-ovserve-ignored-params` lists them. Known ones that are not supported are 400 `unsupported_parameter`.
Paths under /v3 are also served under the prefixes in `x-ovserve-also`."""

HEADERS = {
    "x-request-id": "the client's own, or one made here",
    "x-ovserve-ignored-params": "parameters without effect, separated by commas",
    "x-ovserve-clamped": "what was lowered, and to what",
    "x-ovserve-adapted": "how messages were rearranged for the chat template, what it shows nowhere, and "
    "which voice stands in for one of OpenAI's",
    "x-ovserve-repetition": "choices that were ended because they repeat themselves",
}


class PlainError(msgspec.Struct):
    """KServe's and OVMS's clients concatenate it."""

    error: str


def paths_of(routes: Iterable[Route], operations: Iterable[Operation]) -> dict[Operation, list[str]]:
    """Return the paths of each operation: its own first, then the same under other prefixes."""
    paths: dict[Operation, list[str]] = {}
    routes, operations = list(routes), list(operations)
    exact = {(o.method, o.path) for o in operations}
    for operation in operations:
        for path in _spellings(operation.path):
            mine = path == operation.path or (operation.method, path) not in exact
            sample = re.sub(r"\{\w+\}", "x", path)
            if mine and any(r[0] == operation.method and r[1].fullmatch(sample) for r in routes):
                paths.setdefault(operation, []).append(path)
    return paths


def _spellings(path: str) -> Iterator[str]:
    if not path.startswith(VERSIONED + "/"):
        yield path
        return
    for version in VERSIONS:
        yield version + path.removeprefix(VERSIONED)


def document(routes: Iterable[Route], operations: Iterable[Operation] = OPERATIONS) -> dict[str, Any]:
    served = paths_of(routes, operations)
    types = [ErrorBody, PlainError]
    for one in (t for o in served for t in (o.request, o.answer, o.event, o.error) if t is not None):
        types += one if isinstance(one, tuple) else [one]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF + "{name}")
    by_type = dict(zip(types, schemas, strict=True))

    def schema_of(type_: Any) -> dict[str, Any]:
        return {"anyOf": [by_type[t] for t in type_]} if isinstance(type_, tuple) else by_type[type_]

    paths: dict[str, Any] = {}
    for operation, (path, *also) in served.items():
        item = paths.setdefault(path, {})
        described = _describe(operation, path, also, schema_of, components)
        item[operation.method.lower()] = described
        if operation.method == "GET":
            item["head"] = _head(described)
    return with_own_names(
        {
            "openapi": "3.1.0",
            "info": {"title": "ovserve", "version": __version__, "description": DESCRIPTION},
            "paths": paths,
            "components": {"schemas": components},
        }
    )


def _describe(
    operation: Operation,
    path: str,
    also: list[str],
    schema_of: Callable[[Any], dict[str, Any]],
    components: dict[str, Any],
) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.answer is not None:
        kind = "text/plain" if operation.answer is str else "application/json"
        content[kind] = {"schema": schema_of(operation.answer)}
    style = style_of(path, {}, {})
    if style.name == "ollama" and "stream" in operation.defaults:  # a line of JSON per part
        content["application/x-ndjson"] = {"schema": schema_of(operation.answer)}
    error = schema_of(operation.error or (PlainError if style.name in ("plain", "ollama") else ErrorBody))
    if operation.event is not None:
        content["text/event-stream"] = {"schema": _event(schema_of(operation.event), error)}
    names = HEADERS if operation.request is not None else ("x-request-id",)
    ok: dict[str, Any] = {"description": operation.summary, "headers": _headers(names)}
    if content:
        ok["content"] = content
    described: dict[str, Any] = {
        "operationId": f"{operation.method.lower()}_{_identifier(operation.name)}",
        "summary": operation.summary,
        "responses": {"200": ok}
        | {str(status): ok | {"description": text} for status, text in operation.also.items()},
    }
    for status, why in _statuses(operation, style).items():
        described["responses"][str(status)] = {
            "description": why,
            "headers": _headers(("x-request-id",)),
            "content": {"application/json": {"schema": error}},
        }
    variables = [_parameter(name, "path", "") for name in re.findall(r"\{(\w+)\}", path)]
    if parameters := variables + [_parameter(name, "query", text) for name, text in operation.query.items()]:
        described["parameters"] = parameters
    if operation.request is not None:
        body = _body(operation, schema_of(operation.request), components)
        media = {"schema": body, "examples": _examples(operation)} if operation.example else {"schema": body}
        kind = FORM if operation.form else "application/json"
        described["requestBody"] = {"required": True, "content": {kind: media}}
    return described | ({"x-ovserve-also": also} if also else {})


def _event(event: dict[str, Any], error: dict[str, Any]) -> dict[str, Any]:
    """One server-sent event, which is what `schema` means for this content type before OpenAPI 3.2."""
    data = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [event, error]},  # an error is the last event of a stream that failed
    }
    return {
        "type": "object",
        "description": "each event of the answer to `stream: true`",
        "properties": {"event": {"type": "string"}, "data": {"anyOf": [{"const": "[DONE]"}, data]}},
        "required": ["data"],
    }


def _examples(operation: Operation) -> dict[str, Any]:
    examples = {"whole": {"value": dict(operation.example)}}
    if operation.event is not None:
        examples["streamed"] = {"value": {**operation.example, "stream": True}}
    return examples


def _identifier(name: str) -> str:
    """ "models/{model}" as models_model, "/info" as root_info."""
    words = re.findall(r"\w+", name)
    return "_".join(["root", *words] if name.startswith("/") else words)


def _statuses(operation: Operation, style: ApiStyle) -> dict[int, str]:
    """Return the errors an operation may give: 405 belongs to other methods, 413 and 415 to bodies."""
    never = {405} if operation.request is not None else {405, 413, 415}
    azure = AzureError in (operation.error if isinstance(operation.error, tuple) else [operation.error])
    of_values = (UNPROCESSABLE_STATUS,) if azure else ()
    statuses: dict[int, str] = dict.fromkeys((*of_values, *operation.statuses), "rejected")
    for kind, row in style.rows.items():
        if row.status not in never:
            statuses[row.status] = f"{statuses[row.status]}, {kind}" if row.status in statuses else kind
    return dict(sorted(statuses.items()))


def _body(operation: Operation, root: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """The struct's schema, with the parameters that the decoder rejects unless they ask for nothing."""
    schema = components[root["$ref"].removeprefix(REF)]
    properties = dict(schema["properties"])
    for name, refused in operation.refused.items():
        text = f"not supported: {refused.why}"
        allowed = [exactly(value) for value in (None, *refused.neutral)]
        properties[name] = {"anyOf": allowed, "description": text}
    for name in operation.optional:
        properties[name] = {"anyOf": [properties[name], {"type": "null"}]}
    required = [name for name in schema.get("required", ()) if name not in operation.optional]
    return {**schema, "properties": properties, "required": required}


def _parameter(name: str, place: str, text: str) -> dict[str, Any]:
    # A path's variable stands for at least one character.
    schema = {"type": "string", "minLength": 1} if place == "path" else {"type": "string"}
    return {"name": name, "in": place, "required": place == "path", "description": text, "schema": schema}


def _headers(names: Iterable[str]) -> dict[str, Any]:
    return {name: {"description": HEADERS[name], "schema": {"type": "string"}} for name in names}


def _head(described: dict[str, Any]) -> dict[str, Any]:
    bare = {
        status: {k: v for k, v in one.items() if k != "content"}
        for status, one in described["responses"].items()
    }
    name = "head" + described["operationId"].removeprefix("get")
    return described | {"operationId": name, "responses": bare}
