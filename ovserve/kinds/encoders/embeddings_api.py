"""POST embeddings, and Cohere's embed: request bodies, what the engine gets of them, and response bodies.

The vectors come from the engine as JSON text and are put into the response as they are.
https://docs.cohere.com/reference/embed, read 2026-12-01
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ovserve.api.openai.body import decode_body
from ovserve.api.openai.common import encode, new_id
from ovserve.api.openai.operation import Count, Natural, NaturalOrMinusOne, Operation, doc
from ovserve.errors import InvalidArgument
from ovserve.kinds.payload import packed

QueryType = Literal["query", "search_query"]  # names of one prompt
DocumentType = Literal["document", "passage", "search_document"]
InputType = QueryType | DocumentType | Literal["text", "classification", "clustering"]
OneType = Annotated[list[Literal["float", "base64"]], Meta(min_length=1, max_length=1)]
TokenId = Natural
BY_TYPE = "embeddings_by_type"  # the form of Cohere's second API, and of its first where types are named


class TextInput(msgspec.Struct):
    text: Annotated[str, doc("of an input in Jina's form")]


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    model: Annotated[str, doc("the name under which a graph is served")]
    input: Annotated[str | list[str | TokenId | list[TokenId] | TextInput], doc("nothing mixed")]
    encoding_format: Annotated[
        Literal["float", "base64"] | None, doc("base64: the float32 values, little-endian")
    ] = None
    dimensions: Annotated[Count | None, doc("cut vectors to so many values of unit length")] = None
    output_dimension: Annotated[Count | None, doc("Voyage's name of dimensions")] = None
    output_dtype: Annotated[Literal["float"] | None, doc("Voyage's; other types are refused")] = None
    user: Annotated[str | None, doc("without effect")] = None
    truncate: Annotated[
        bool | None,
        doc(
            "true: cut inputs that are too long; false: refuse them, also those over the model's "
            "`max_seq_length`; default: the graph's"
        ),
    ] = None
    truncation: Annotated[bool | None, doc("Voyage's name of truncate")] = None
    truncate_prompt_tokens: Annotated[
        NaturalOrMinusOne | None, doc("cut inputs to so many tokens; -1: to what the model reads")
    ] = None
    instruction: Annotated[str | None, doc("a text that is put before each input")] = None
    prompt_name: Annotated[str | None, doc("the model's prompt of this name goes before each input")] = None
    input_type: Annotated[
        InputType | None,
        doc("Azure's, Cohere's and NVIDIA's: the model's prompt of this name, or of one that means the same"),
    ] = None

    def __post_init__(self) -> None:
        self.dimensions = self.dimensions or self.output_dimension
        self.truncate = self.truncation if self.truncate is None else self.truncate


class Embedding(msgspec.Struct):
    object: str
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct):
    object: str
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Embed(msgspec.Struct, frozen=True):
    """A checked body. `inputs` is msgpack: a list of texts, or of lists of token ids, which it is without."""

    body: EmbeddingRequest
    inputs: bytes
    count: int
    tokens: bool  # the inputs are token ids
    ignored: tuple[str, ...]
    texts: bytes = b"[]"  # what Cohere's answer repeats, in JSON
    form: str = ""  # of Cohere's answer


_decoder = msgspec.json.Decoder(EmbeddingRequest)


def decode_embeddings(body: bytes) -> Embed:
    """Raises InvalidArgument naming the field."""
    request, unknown = decode_body(body, _decoder)
    inputs, tokens = inputs_of(request.input)
    if request.instruction is not None and request.prompt_name is not None:
        raise InvalidArgument.at("prompt_name", "not with instruction, which takes its place")
    for name in ("instruction", "prompt_name"):
        if tokens and getattr(request, name) is not None:
            raise InvalidArgument.at(name, "not with token ids, only with texts")
    truncate_to(request.truncate_prompt_tokens)
    request.input = ""
    return Embed(request, packed(inputs, "input"), len(inputs), tokens, tuple(sorted(unknown)))


def truncate_to(value: int | None) -> int | None:
    """Return the tokens to cut to; 0: to the limit. Raises InvalidArgument."""
    if value == 0:
        raise InvalidArgument.at("truncate_prompt_tokens", "expected -1, or 1 or more, got 0")
    return value if value is None else max(0, value)


def inputs_of(inputs: str | list[Any]) -> tuple[Sequence[Any], bool]:
    """Return the inputs as a list, and whether they are token ids. The sentences begin as OVMS's do."""
    if isinstance(inputs, str):
        return [inputs], False
    if not inputs:
        raise InvalidArgument("input array should not be empty", param="input")
    kinds = set(map(type, inputs))
    if kinds == {int}:
        return [inputs], True
    if kinds == {str}:
        return inputs, False
    if kinds == {TextInput}:
        return [one.text for one in inputs], False
    if len(kinds) > 1:
        names = {str: "texts", int: "token ids", list: "lists of token ids", TextInput: "objects"}
        described = " and ".join(names[kind] for kind in names if kind in kinds)
        raise InvalidArgument(f"input must be homogeneous: got {described}", param="input")
    if [] in inputs:
        at = inputs.index([])
        raise InvalidArgument(
            f"inner arrays in input should not be empty: input[{at}] is", param=f"input[{at}]"
        )
    return inputs, True


def embeddings_body(vectors: Sequence[bytes], model: str, tokens: int) -> bytes:
    """Return the response. `vectors` are JSON values."""
    data = b",".join(
        b'{"object":"embedding","index":%d,"embedding":%b}' % (i, vector) for i, vector in enumerate(vectors)
    )
    usage = b'{"prompt_tokens":%d,"total_tokens":%d}' % (tokens, tokens)
    return b'{"object":"list","data":[%b],"model":%b,"usage":%b}' % (data, encode(model), usage)


class CohereRequest(msgspec.Struct, kw_only=True):
    model: Annotated[str, doc("the name under which a graph is served")]
    texts: Annotated[list[str], doc("at least one")]
    input_type: Annotated[InputType | None, doc("the model's prompt of this name goes before each text")] = (
        None
    )
    embedding_types: Annotated[OneType | None, doc("float or base64, not both")] = None
    output_dimension: Annotated[Count | None, doc("cut vectors to so many values of unit length")] = None
    max_tokens: Annotated[Count | None, doc("cut texts to so many tokens")] = None
    truncate: Annotated[Literal["NONE", "END"] | None, doc("END, the default, cuts; NONE refuses")] = None


class CohereEmbeddings(msgspec.Struct):
    id: str
    response_type: str
    embeddings: dict[str, list[list[float] | str]] | list[list[float]]
    texts: list[str]
    meta: dict[str, Any]


_cohere_decoder = msgspec.json.Decoder(CohereRequest)


def decode_cohere(body: bytes) -> Embed:
    """Decode the body of Cohere's first API. Raises InvalidArgument naming the field."""
    request, unknown = decode_body(body, _cohere_decoder)
    texts = request.texts
    if not texts:
        raise InvalidArgument.at("texts", "expected at least one, got none")
    plain = EmbeddingRequest(
        model=request.model,
        input="",
        encoding_format=(request.embedding_types or ["float"])[0],
        dimensions=request.output_dimension,
        truncate=request.truncate != "NONE",
        truncate_prompt_tokens=request.max_tokens,
        input_type=request.input_type,
    )
    form = BY_TYPE if request.embedding_types else "embeddings_floats"
    ignored = tuple(sorted(unknown))
    return Embed(plain, packed(texts, "texts"), len(texts), False, ignored, encode(texts), form)


def decode_cohere_v2(body: bytes) -> Embed:
    return msgspec.structs.replace(decode_cohere(body), form=BY_TYPE)


def cohere_body(request: Embed, vectors: Sequence[bytes], tokens: int) -> bytes:
    """Return the response in Cohere's form. `vectors` are JSON values."""
    listed = b"[%b]" % b",".join(vectors)
    version = "1"
    if request.form == BY_TYPE:
        listed, version = b'{"%b":%b}' % ((request.body.encoding_format or "").encode(), listed), "2"
    meta = {"api_version": {"version": version}, "billed_units": {"input_tokens": tokens}}
    texts, vectors_by_type = msgspec.Raw(request.texts), msgspec.Raw(listed)
    head = {"id": new_id("embed-"), "response_type": request.form}
    return encode({**head, "embeddings": vectors_by_type, "texts": texts, "meta": meta})


OPERATION = Operation(
    "POST",
    "/v3/embeddings",
    "Texts or token ids to vectors.",
    answer=EmbeddingList,
    request=EmbeddingRequest,
    example={"model": "minilm", "input": ["How deep is the sea?"]},
    defaults={"encoding_format": "float"},
    reported={"user": "without effect"},
    declared=True,
)
_COHERE = Operation(
    "POST",
    "/v3/embed",
    "Texts to vectors, in the form of Cohere's first API.",
    answer=CohereEmbeddings,
    request=CohereRequest,
    example={"model": "minilm", "texts": ["How deep is the sea?"], "input_type": "search_query"},
    declared=True,
)
OPERATIONS = (
    OPERATION,
    _COHERE,
    replace(_COHERE, path="/v3/v2/embed", summary="As /v3/embed, of Cohere's second API.", same_as="embed"),
)
