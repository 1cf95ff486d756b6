"""POST rerank in Cohere's v1 and v2 and Jina's form: the request body and the response body.

One endpoint serves all of them, because their fields do not contradict. Source:
https://docs.cohere.com/reference/rerank, read 2026-11-22
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ovserve.api.openai.body import decode_body
from ovserve.api.openai.common import encode, new_id
from ovserve.api.openai.operation import Count, Operation, doc
from ovserve.errors import InvalidArgument
from ovserve.kinds.encoders.embeddings_api import EmbeddingUsage
from ovserve.kinds.encoders.spec import RerankArguments
from ovserve.kinds.payload import packed

TEXT = "text"  # the field of an object that is ranked unless rank_fields says others


class RerankRequest(msgspec.Struct, kw_only=True):
    model: Annotated[str, doc("the name under which a graph is served")]
    query: Annotated[str, doc("what the documents are compared with")]
    documents: Annotated[
        list[str | dict[str, Any]],
        doc("texts, or objects with a field text or those of rank_fields"),
    ]
    top_n: Annotated[Count | None, doc("so many of the best documents")] = None
    top_k: Annotated[Count | None, doc("Voyage's name of top_n")] = None
    truncation: Annotated[bool | None, doc("Voyage's: gives the answer Voyage's form")] = None
    return_documents: Annotated[bool | None, doc("the results repeat their documents")] = None
    rank_fields: Annotated[
        Annotated[list[str], Meta(min_length=1)] | None,
        doc("fields of objects that are ranked, one line `name: value` each"),
    ] = None
    max_chunks_per_doc: Annotated[Count | None, doc("pieces of a long document that are read")] = None
    max_tokens_per_doc: Annotated[Count | None, doc("tokens of a document that are read")] = None
    instruction: Annotated[str | None, doc("what a causal reranker shall judge by")] = None
    raw_scores: Annotated[bool | None, doc("logits instead of scores from 0 to 1")] = None


class RerankResult(msgspec.Struct):
    index: int
    relevance_score: float
    document: dict[str, Any] | UnsetType = UNSET  # a text is the field text of one


class RerankMeta(msgspec.Struct):
    api_version: dict[str, str]
    billed_units: dict[str, int]


class RerankResponse(msgspec.Struct, kw_only=True):
    id: str
    model: str
    results: list[RerankResult] | UnsetType = UNSET
    object: str | UnsetType = UNSET
    data: list[RerankResult] | UnsetType = UNSET  # what Voyage calls the results
    meta: RerankMeta
    usage: EmbeddingUsage


@dataclass(frozen=True)
class Ranked:
    """A checked body. `texts` is msgpack of what is ranked; `shown` are the documents of the answer."""

    model: str
    texts: bytes
    count: int
    arguments: RerankArguments
    top_n: int | None
    shown: tuple[str | Mapping[str, Any], ...] | None
    ignored: tuple[str, ...]
    lists_data: bool  # as Voyage does


_decoder = msgspec.json.Decoder(RerankRequest)


def decode_rerank(body: bytes) -> Ranked:
    """Raises InvalidArgument naming the field."""
    request, unknown = decode_body(body, _decoder)
    if not request.documents:
        raise InvalidArgument.at("documents", "expected at least one, got none")
    if len(set(map(type, request.documents))) > 1:
        raise InvalidArgument.at("documents", "all documents have to be the same type (string or objects)")
    texts = [_text(d, i, request.rank_fields) for i, d in enumerate(request.documents)]
    documents_packed = packed(texts, "documents")
    packed(request.query, "documents")
    arguments = RerankArguments(
        request.query,
        max_chunks_per_document=request.max_chunks_per_doc,
        max_tokens_per_document=request.max_tokens_per_doc,
        instruction=request.instruction or "",
        raw=bool(request.raw_scores),
    )
    documents = tuple(request.documents) if request.return_documents else None
    no_effect = {"rank_fields"} if request.rank_fields and isinstance(request.documents[0], str) else ()
    ignored = tuple(sorted({*unknown, *no_effect}))
    lists_data = request.top_k is not None or request.truncation is not None
    top_n = request.top_n or request.top_k
    return Ranked(
        request.model, documents_packed, len(texts), arguments, top_n, documents, ignored, lists_data
    )


def _text(document: str | dict[str, Any], index: int, fields: Sequence[str] | None) -> str:
    """Return what is ranked of a document. Raises InvalidArgument for a field that it lacks."""
    if isinstance(document, str):
        return document
    for name in fields or (TEXT,):
        if name not in document:
            raise InvalidArgument.at(f"documents[{index}].{name}", f"document {name} field is missing")
    if fields:
        return "\n".join(f"{name}: {_as_text(document[name])}" for name in fields)
    if not isinstance(document[TEXT], str):
        value = _as_text(document[TEXT])[:64]
        raise InvalidArgument.at(f"documents[{index}].{TEXT}", f"expected text, got {value}")
    return str(document[TEXT])


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else encode(value).decode()


def rerank_body(request: Ranked, scores: Sequence[float], tokens: int) -> bytes:
    """Return the response: the best documents first, equal ones in their order."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])[: request.top_n]
    results = [RerankResult(i, scores[i], _document_of(request, i)) for i in order]
    meta = RerankMeta({"version": "2"}, {"search_units": 1})
    form = {"object": "list", "data": results} if request.lists_data else {"results": results}
    usage = EmbeddingUsage(tokens, tokens)
    return encode(RerankResponse(id=new_id("rerank-"), model=request.model, meta=meta, usage=usage, **form))


def _document_of(request: Ranked, index: int) -> dict[str, Any] | UnsetType:
    if request.shown is None:
        return UNSET
    document = request.shown[index]
    return {TEXT: document} if isinstance(document, str) else dict(document)


_OPERATION = Operation(
    "POST",
    "/v3/rerank",
    "Documents by their relevance to a query, in the form of Cohere, Jina and Voyage.",
    answer=RerankResponse,
    request=RerankRequest,
    example={"model": "reranker", "query": "What is the sea?", "documents": ["Salt water.", "A bicycle."]},
    defaults={"return_documents": False, "raw_scores": False},
    declared=True,
)
OPERATIONS = (
    _OPERATION,
    replace(
        _OPERATION,
        path="/v3/v2/rerank",
        summary="As /v3/rerank; the address of Cohere's second API.",
        same_as="rerank",
    ),
)
