"""The nodes of encoders: EmbeddingsCalculatorOV, RerankCalculatorOV and ClassificationCalculatorOV."""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping
from typing import ClassVar, get_args

from msgspec import structs

from ovserve.api.openai.common import encode
from ovserve.errors import InvalidArgument
from ovserve.graph import Context, Node, SidePacket, calculator
from ovserve.kinds.encoders import spec as encoders
from ovserve.kinds.encoders.embeddings_api import (
    DocumentType,
    Embed,
    QueryType,
    cohere_body,
    decode_cohere,
    decode_cohere_v2,
    decode_embeddings,
    embeddings_body,
    truncate_to,
)
from ovserve.kinds.encoders.rerank_api import decode_rerank, rerank_body
from ovserve.kinds.encoders.resource import (
    EncoderCalculator,
    EncoderOptions,
    EncoderResource,
    encoder_kind,
    encoder_place,
    headers_of,
    input_length,
    score,
)
from ovserve.kinds.encoders.score_api import (
    CLASSIFY,
    SCORE,
    classification_body,
    decode_classification,
    decode_score,
)
from ovserve.kinds.encoders.spec import (
    CAUSAL,
    EMBED,
    FLOAT,
    RERANK,
    SEPARATOR,
    ClassificationFacts,
    ClassificationSpec,
    ClassifyAnswer,
    EmbedAnswer,
    EmbedArguments,
    EmbeddingFacts,
    EmbeddingSpec,
    RerankAnswer,
    RerankFacts,
    RerankSpec,
)
from ovserve.kinds.payload import Decoder, HttpPayload, HttpResponse, JsonEndpoint
from ovserve.kinds.resource import parse_isolation
from ovserve.protos.options_pb2 import (
    ClassificationCalculatorOVOptions,
    EmbeddingsCalculatorOVOptions,
    RerankCalculatorOVOptions,
)

WITHOUT_EFFECT = "activation", "instruction", "use_activation"  # fields of score, on vectors

log = logging.getLogger(__name__)


class EmbeddingsResource(EncoderResource[EmbeddingFacts]):
    pass


def _parse_embeddings(node: Node) -> EncoderOptions:
    options = node.required_options(EmbeddingsCalculatorOVOptions)
    place = encoder_place(node, options, "embeddings")
    length = input_length(node, options, place)
    pooling = ""
    if options.HasField("pooling"):
        pooling = EmbeddingsCalculatorOVOptions.Pooling.Name(options.pooling)
    elif place.files.pooling_note:
        log.warning("node %r: pooling is CLS: %s", node.name, place.files.pooling_note)
    spec = EmbeddingSpec(
        place.path,
        place.device,
        place.properties,
        isolation=parse_isolation(node, options.isolation),
        pooling=pooling,
        normalize=options.normalize_embeddings,
        max_length=length,
    )
    return EncoderOptions(spec, options.truncate)


EMBEDDINGS = encoder_kind(
    "EMBEDDINGS_NODE_RESOURCES", EmbeddingsResource, EmbeddingsCalculatorOVOptions, _parse_embeddings
)


@calculator("EmbeddingsCalculatorOV")
class EmbeddingsCalculatorOV(EncoderCalculator):
    resource = EMBEDDINGS
    endpoints: ClassVar[Mapping[str, Decoder]] = {
        "embeddings": JsonEndpoint("embeddings", decode_embeddings),
        "embed": JsonEndpoint("embed", decode_cohere),
        "v2/embed": JsonEndpoint("v2/embed", decode_cohere_v2),
        SCORE: JsonEndpoint(SCORE, decode_score),
    }

    embedder = SidePacket("EMBEDDINGS_NODE_RESOURCES", EmbeddingsResource)

    async def answer(self, cc: Context, payload: HttpPayload) -> HttpResponse:
        embedder = cc[self.embedder]
        if payload.endpoint == SCORE:
            truncate = embedder.options.truncate
            return await score(payload, embedder, without=WITHOUT_EFFECT, truncate=truncate, most=None)
        request = await embedder.bodies.run(
            payload.head.large, self.endpoints[payload.endpoint].decode, payload.body
        )
        item = await embedder.engine.one(EMBED, arguments(request, embedder), (request.inputs,))
        answer: EmbedAnswer = item.decode(EmbedAnswer)
        embedder.count(answer.tokens, answer.truncated, answer.batches)
        embedder.metrics.inputs += request.count
        vectors = bytes(item.blobs[0]).split(SEPARATOR)
        ignored = request.ignored
        if request.body.input_type not in (None, "text") and not _prompt_name(request, embedder.model):
            ignored = tuple(sorted((*ignored, "input_type")))
        if request.form:
            body = cohere_body(request, vectors, answer.tokens)
        else:
            body = embeddings_body(vectors, request.body.model, answer.tokens)
        return HttpResponse(body, headers=headers_of(ignored, answer.truncated))


def arguments(request: Embed, embedder: EmbeddingsResource) -> EmbedArguments:
    """Return what the engine gets besides the inputs. Raises InvalidArgument for an unknown prompt."""
    body = request.body
    truncates = embedder.options.truncate if body.truncate is None else body.truncate
    truncate = truncate_to(body.truncate_prompt_tokens)
    return EmbedArguments(
        prompt="" if request.tokens else _prompt(request, embedder.model),
        tokens=request.tokens,
        truncate=0 if truncate is None and truncates else truncate,
        whole=body.truncate is False,
        dimensions=body.dimensions,
        encoding=body.encoding_format or FLOAT,
    )


def _prompt_name(request: Embed, facts: EmbeddingFacts) -> str:
    """Return the name of the prompt that `input_type` selects; "" if it decides nothing."""
    body = request.body
    value = body.input_type
    if value is None or request.tokens or body.instruction is not None or body.prompt_name is not None:
        return ""
    alike = next((names for names in map(get_args, (QueryType, DocumentType)) if value in names), ())
    return next((name for name in (value, *alike) if name in facts.prompts), "")


def _prompt(request: Embed, facts: EmbeddingFacts) -> str:
    """The text before each input: what the request says, else the model's default prompt."""
    body = request.body
    if body.instruction is not None:
        return body.instruction
    if body.prompt_name is not None:
        if body.prompt_name not in facts.prompts:
            names_of_prompts = ", ".join(facts.prompts) or "none"
            raise InvalidArgument.at(
                "prompt_name", f"the model has {names_of_prompts}, got {encode(body.prompt_name).decode()}"
            )
        return facts.prompts[body.prompt_name]
    return facts.prompts.get(_prompt_name(request, facts) or facts.default_prompt, "")


MIN_POSITIONS = 8  # OVMS's: so many positions are not enough for a pair


class RerankResource(EncoderResource[RerankFacts]):
    special = False


def _parse_rerank(node: Node) -> EncoderOptions:
    options = node.required_options(RerankCalculatorOVOptions)
    place = encoder_place(node, options, "rerank")
    positions = options.max_position_embeddings if options.HasField("max_position_embeddings") else None
    if positions is not None and positions <= MIN_POSITIONS:
        raise node.error(
            f"expected more than {MIN_POSITIONS}, got {positions}: a pair has special tokens and two texts",
            "max_position_embeddings",
        )
    if not options.max_allowed_chunks:
        raise node.error("expected at least 1, got 0", "max_allowed_chunks")
    isolation = parse_isolation(node, options.isolation)
    spec = RerankSpec(
        place.path, place.device, place.properties, isolation=isolation, max_position_embeddings=positions
    )
    return EncoderOptions(spec, max_allowed_chunks=options.max_allowed_chunks)


RERANKER = encoder_kind("RERANK_NODE_RESOURCES", RerankResource, RerankCalculatorOVOptions, _parse_rerank)


@calculator("RerankCalculatorOV")
class RerankCalculatorOV(EncoderCalculator):
    resource = RERANKER
    endpoints: ClassVar[Mapping[str, Decoder]] = {
        e.name: e for e in (JsonEndpoint("rerank", decode_rerank), JsonEndpoint(SCORE, decode_score))
    }

    reranker = SidePacket("RERANK_NODE_RESOURCES", RerankResource)

    async def answer(self, cc: Context, payload: HttpPayload) -> HttpResponse:
        reranker = cc[self.reranker]
        most = reranker.options.max_allowed_chunks
        if payload.endpoint == SCORE:
            without = ("max_tokens_per_query",) if reranker.model.form == CAUSAL else ("instruction",)
            return await score(payload, reranker, without=without, truncate=False, most=most)
        request = await reranker.bodies.run(payload.head.large, decode_rerank, payload.body)
        if request.count > most:
            raise InvalidArgument(
                f"Number of documents exceeds max_allowed_chunks: {request.count} of at most {most}",
                param="documents",
            )
        arguments = structs.replace(request.arguments, max_chunks=most)
        item = await reranker.engine.one(RERANK, arguments, (request.texts,))
        answer: RerankAnswer = item.decode(RerankAnswer)
        reranker.count(answer.tokens, answer.documents_cut, answer.batches)
        reranker.metrics.documents += request.count
        reranker.metrics.chunks += answer.chunks
        scores = struct.unpack(f"<{request.count}f", item.blobs[0])
        ignored = request.ignored
        if arguments.instruction and reranker.model.form != CAUSAL:
            ignored = tuple(sorted((*ignored, "instruction")))
        cut = ["query"] * answer.query_cut + [str(answer.documents_cut)] * bool(answer.documents_cut)
        body = rerank_body(request, scores, answer.tokens)
        return HttpResponse(body, headers=headers_of(ignored, ", ".join(cut)))


class ClassificationResource(EncoderResource[ClassificationFacts]):
    pass


def _parse_classification(node: Node) -> EncoderOptions:
    options = node.required_options(ClassificationCalculatorOVOptions)
    place = encoder_place(node, options, "classification")
    spec = ClassificationSpec(
        place.path,
        place.device,
        place.properties,
        isolation=parse_isolation(node, options.isolation),
        max_length=input_length(node, options, place),
    )
    return EncoderOptions(spec, options.truncate)


CLASSIFIER = encoder_kind(
    "CLASSIFICATION_NODE_RESOURCES",
    ClassificationResource,
    ClassificationCalculatorOVOptions,
    _parse_classification,
)


@calculator("ClassificationCalculatorOV")
class ClassificationCalculatorOV(EncoderCalculator):
    resource = CLASSIFIER
    endpoints: ClassVar[Mapping[str, Decoder]] = {CLASSIFY: JsonEndpoint(CLASSIFY, decode_classification)}

    classifier = SidePacket("CLASSIFICATION_NODE_RESOURCES", ClassificationResource)

    async def answer(self, cc: Context, payload: HttpPayload) -> HttpResponse:
        classifier = cc[self.classifier]
        request = await classifier.bodies.run(payload.head.large, decode_classification, payload.body)
        arguments = request.arguments
        if classifier.options.truncate and arguments.truncate is None:
            arguments = structs.replace(arguments, truncate=0)
        item = await classifier.engine.one(encoders.CLASSIFY, arguments, (request.inputs,))
        answer: ClassifyAnswer = item.decode(ClassifyAnswer)
        classifier.count(answer.tokens, answer.truncated, answer.batches)
        classifier.metrics.classified += request.count
        values = bytes(item.blobs[0]).split(SEPARATOR)
        body = classification_body(request.model, values, answer.best, classifier.model.labels, answer.tokens)
        return HttpResponse(body, headers=headers_of(request.ignored, answer.truncated))
