"""The nodes of encoders: EmbeddingsCalculatorOV, RerankCalculatorOV and ClassificationCalculatorOV."""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ovserve.api.openai.common import encode
from ovserve.engine.client.calls import CallClient
from ovserve.errors import InvalidArgument
from ovserve.graph import Context, Node, SidePacket, calculator
from ovserve.kinds.encoders import spec as encoders
from ovserve.kinds.encoders.embeddings_api import Embed, Embeddings, decode_embeddings, embeddings_body
from ovserve.kinds.encoders.rerank_api import Rerank, decode_rerank, rerank_body
from ovserve.kinds.encoders.resource import (
    EncoderCalculator,
    EncoderResource,
    check_files,
    encoder_place,
    input_length,
    score,
    services,
)
from ovserve.kinds.encoders.score_api import (
    CLASSIFY,
    SCORE,
    ClassifyEndpoint,
    ScoreEndpoint,
    classification_body,
    decode_classification,
)
from ovserve.kinds.encoders.spec import (
    CAUSAL,
    EMBED,
    RERANK,
    SEPARATOR,
    ClassificationFacts,
    ClassificationSpec,
    ClassifyAnswer,
    ClassifyArguments,
    EmbedAnswer,
    EmbedArguments,
    EmbeddingFacts,
    EmbeddingSpec,
    RerankAnswer,
    RerankArguments,
    RerankFacts,
    RerankSpec,
)
from ovserve.kinds.payload import TRUNCATED_HEADER, Decoder, HttpPayload, HttpResponse, ignored_header
from ovserve.kinds.resource import Host, ResourceKind, parse_isolation
from ovserve.protos.options_pb2 import (
    ClassificationCalculatorOVOptions,
    EmbeddingsCalculatorOVOptions,
    RerankCalculatorOVOptions,
)

SIDES = "query", "document"  # values of input_type that ask for a prompt; "text" asks for none
WITHOUT_EFFECT = "activation", "instruction", "use_activation"  # fields of score, on vectors

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EmbeddingsOptions:
    spec: EmbeddingSpec
    truncate: bool


@dataclass(frozen=True)
class EmbeddingsResource(EncoderResource):
    truncate: bool = False

    @property
    def embedder(self) -> EmbeddingFacts:
        assert isinstance(self.model, EmbeddingFacts), "the facts of EmbeddingSpec"
        return self.model


def _parse_embeddings(node: Node) -> EmbeddingsOptions:
    options = node.required_options(EmbeddingsCalculatorOVOptions)
    place = encoder_place(node, options)
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
    return EmbeddingsOptions(spec, options.truncate)


async def _make_embeddings(
    node: Node, options: EmbeddingsOptions, engine: CallClient, host: Host
) -> EmbeddingsResource:
    return EmbeddingsResource(*services(engine, host), truncate=options.truncate)


EMBEDDINGS = ResourceKind(
    tag="EMBEDDINGS_NODE_RESOURCES",
    packet_type=EmbeddingsResource,
    options_type=EmbeddingsCalculatorOVOptions,
    parse=_parse_embeddings,
    spec=lambda options: options.spec,
    make=_make_embeddings,
    check=lambda node, options: check_files(node, options.spec.model_path),
)


@calculator("EmbeddingsCalculatorOV")
class EmbeddingsCalculatorOV(EncoderCalculator):
    resource = EMBEDDINGS
    endpoints: ClassVar[Mapping[str, Decoder]] = {Embeddings.name: Embeddings(), SCORE: ScoreEndpoint()}

    embedder = SidePacket("EMBEDDINGS_NODE_RESOURCES", EmbeddingsResource)

    async def process(self, cc: Context) -> None:
        (source,), (target,) = cc.contract.inputs, cc.contract.outputs
        payload: HttpPayload | None = cc[source]
        if payload is None:
            return
        embedder = cc[self.embedder]
        if payload.endpoint == SCORE:
            truncate = embedder.truncate
            cc.send(
                target, await score(payload, embedder, without=WITHOUT_EFFECT, truncate=truncate, most=None)
            )
        else:
            cc.send(target, await self._embed(payload, embedder))

    async def _embed(self, payload: HttpPayload, embedder: EmbeddingsResource) -> HttpResponse:
        if payload.head.large:
            request = await embedder.bodies.run(True, decode_embeddings, payload.body)
        else:
            request = decode_embeddings(payload.body)
        item = await embedder.one(EMBED, arguments(request, embedder), (request.inputs,))
        answer: EmbedAnswer = item.decode(EmbedAnswer)
        embedder.count(answer.tokens, answer.truncated, answer.batches)
        embedder.metrics.inputs += request.count
        vectors = bytes(item.blobs[0]).split(SEPARATOR)
        ignored = request.ignored
        if request.input_type in SIDES and not _by_input_type(request, embedder.embedder):
            ignored = tuple(sorted((*ignored, "input_type")))
        headers = ignored_header(ignored)
        if answer.truncated:
            headers |= {TRUNCATED_HEADER: str(answer.truncated)}
        return HttpResponse(embeddings_body(vectors, request.model, answer.tokens), headers=headers)


def arguments(request: Embed, embedder: EmbeddingsResource) -> EmbedArguments:
    """Return what the engine gets besides the inputs. Raises InvalidArgument for an unknown prompt."""
    facts = embedder.embedder
    truncates = embedder.truncate if request.truncate is None else request.truncate
    truncate: int | None = 0 if truncates else None
    if request.truncate_to is not None:
        truncate = max(0, request.truncate_to)
    prompt = "" if request.tokens else _prompt(request, facts)
    whole = request.truncate is False
    return EmbedArguments(prompt, request.tokens, truncate, whole, request.dimensions, request.encoding)


def _by_input_type(request: Embed, facts: EmbeddingFacts) -> bool:
    """Return whether `input_type` decides what is before each input."""
    other = request.tokens or request.instruction is not None or request.prompt_name is not None
    return not other and request.input_type in facts.prompts


def _prompt(request: Embed, facts: EmbeddingFacts) -> str:
    """The text before each input: what the request says, else the model's default prompt."""
    if request.instruction is not None:
        return request.instruction
    if request.prompt_name is not None:
        if request.prompt_name not in facts.prompts:
            names_of_prompts = ", ".join(facts.prompts) or "none"
            raise InvalidArgument(
                f"prompt_name: the model has {names_of_prompts}, got {encode(request.prompt_name).decode()}",
                param="prompt_name",
            )
        return facts.prompts[request.prompt_name]
    if _by_input_type(request, facts):
        return facts.prompts[str(request.input_type)]
    return facts.prompts.get(facts.default_prompt, "")


MIN_POSITIONS = 8  # OVMS's: so many positions are not enough for a pair


@dataclass(frozen=True)
class RerankOptions:
    spec: RerankSpec
    max_allowed_chunks: int


@dataclass(frozen=True)
class RerankResource(EncoderResource):
    max_allowed_chunks: int = 10_000

    @property
    def form(self) -> str:
        assert isinstance(self.model, RerankFacts), "the facts of RerankSpec"
        return self.model.form


def _parse_rerank(node: Node) -> RerankOptions:
    options = node.required_options(RerankCalculatorOVOptions)
    place = encoder_place(node, options)
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
    return RerankOptions(spec, options.max_allowed_chunks)


async def _make_rerank(node: Node, options: RerankOptions, engine: CallClient, host: Host) -> RerankResource:
    chunks = options.max_allowed_chunks
    return RerankResource(*services(engine, host), special=False, max_allowed_chunks=chunks)


RERANKER = ResourceKind(
    tag="RERANK_NODE_RESOURCES",
    packet_type=RerankResource,
    options_type=RerankCalculatorOVOptions,
    parse=_parse_rerank,
    spec=lambda options: options.spec,
    make=_make_rerank,
    check=lambda node, options: check_files(node, options.spec.model_path),
)


@calculator("RerankCalculatorOV")
class RerankCalculatorOV(EncoderCalculator):
    resource = RERANKER
    endpoints: ClassVar[Mapping[str, Decoder]] = {Rerank.name: Rerank(), SCORE: ScoreEndpoint()}

    reranker = SidePacket("RERANK_NODE_RESOURCES", RerankResource)

    async def process(self, cc: Context) -> None:
        (source,), (target,) = cc.contract.inputs, cc.contract.outputs
        payload: HttpPayload | None = cc[source]
        if payload is None:
            return
        reranker = cc[self.reranker]
        if payload.endpoint == SCORE:
            without = ("max_tokens_per_query",) if reranker.form == CAUSAL else ("instruction",)
            most = reranker.max_allowed_chunks
            answered = await score(payload, reranker, without=without, truncate=False, most=most)
            cc.send(target, answered)
        else:
            cc.send(target, await self._rank(payload, reranker))

    async def _rank(self, payload: HttpPayload, reranker: RerankResource) -> HttpResponse:
        if payload.head.large:
            request = await reranker.bodies.run(True, decode_rerank, payload.body)
        else:
            request = decode_rerank(payload.body)
        most = reranker.max_allowed_chunks
        if request.count > most:
            raise InvalidArgument(
                f"Number of documents exceeds max_allowed_chunks: {request.count} of at most {most}",
                param="documents",
            )
        arguments = RerankArguments(
            request.query, most, request.max_chunks, request.max_tokens, request.instruction, request.raw
        )
        item = await reranker.one(RERANK, arguments, (request.texts,))
        answer: RerankAnswer = item.decode(RerankAnswer)
        reranker.count(answer.tokens, answer.documents_cut, answer.batches)
        reranker.metrics.documents += request.count
        reranker.metrics.chunks += answer.chunks
        scores = struct.unpack(f"<{request.count}f", item.blobs[0])
        ignored = request.ignored
        if request.instruction and reranker.form != CAUSAL:
            ignored = tuple(sorted((*ignored, "instruction")))
        headers = ignored_header(ignored)
        cut = ["query"] * answer.query_cut + [str(answer.documents_cut)] * bool(answer.documents_cut)
        if cut:
            headers |= {TRUNCATED_HEADER: ", ".join(cut)}
        return HttpResponse(rerank_body(request, scores, answer.tokens), headers=headers)


@dataclass(frozen=True)
class ClassificationOptions:
    spec: ClassificationSpec
    truncate: bool


@dataclass(frozen=True)
class ClassificationResource(EncoderResource):
    truncate: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        assert isinstance(self.model, ClassificationFacts), "the facts of ClassificationSpec"
        return self.model.labels


def _parse_classification(node: Node) -> ClassificationOptions:
    options = node.required_options(ClassificationCalculatorOVOptions)
    place = encoder_place(node, options)
    spec = ClassificationSpec(
        place.path,
        place.device,
        place.properties,
        isolation=parse_isolation(node, options.isolation),
        max_length=input_length(node, options, place),
    )
    return ClassificationOptions(spec, options.truncate)


async def _make_classification(
    node: Node, options: ClassificationOptions, engine: CallClient, host: Host
) -> ClassificationResource:
    return ClassificationResource(*services(engine, host), truncate=options.truncate)


CLASSIFIER = ResourceKind(
    tag="CLASSIFICATION_NODE_RESOURCES",
    packet_type=ClassificationResource,
    options_type=ClassificationCalculatorOVOptions,
    parse=_parse_classification,
    spec=lambda options: options.spec,
    make=_make_classification,
    check=lambda node, options: check_files(node, options.spec.model_path),
)


@calculator("ClassificationCalculatorOV")
class ClassificationCalculatorOV(EncoderCalculator):
    resource = CLASSIFIER
    endpoints: ClassVar[Mapping[str, Decoder]] = {CLASSIFY: ClassifyEndpoint()}

    classifier = SidePacket("CLASSIFICATION_NODE_RESOURCES", ClassificationResource)

    async def process(self, cc: Context) -> None:
        (source,), (target,) = cc.contract.inputs, cc.contract.outputs
        payload: HttpPayload | None = cc[source]
        if payload is None:
            return
        classifier = cc[self.classifier]
        if payload.head.large:
            request = await classifier.bodies.run(True, decode_classification, payload.body)
        else:
            request = decode_classification(payload.body)
        cut_to = 0 if classifier.truncate and request.truncate_to is None else request.truncate_to
        arguments = ClassifyArguments(request.tokens, cut_to, request.special, request.raw)
        item = await classifier.one(encoders.CLASSIFY, arguments, (request.inputs,))
        answer: ClassifyAnswer = item.decode(ClassifyAnswer)
        classifier.count(answer.tokens, answer.truncated, answer.batches)
        classifier.metrics.classified += request.count
        headers = ignored_header(request.ignored)
        if answer.truncated:
            headers |= {TRUNCATED_HEADER: str(answer.truncated)}
        values = bytes(item.blobs[0]).split(SEPARATOR)
        body = classification_body(request.model, values, answer.best, classifier.labels, answer.tokens)
        cc.send(target, HttpResponse(body, headers=headers))
