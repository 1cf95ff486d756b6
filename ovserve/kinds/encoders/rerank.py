"""RerankCalculatorOV: documents by their relevance to a query, and scores of pairs of texts, with OVMS's
options and graph files."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ovserve.engine.client.call_client import CallClient
from ovserve.errors import InvalidArgument
from ovserve.graph import Context, Node, SidePacket, calculator
from ovserve.kinds.encoders.metrics import EncoderMetrics
from ovserve.kinds.encoders.options import check_files, encoder_place
from ovserve.kinds.encoders.rerank_api import NAME, Rerank, decode_rerank, rerank_body
from ovserve.kinds.encoders.resource import EncoderCalculator, EncoderResource, score
from ovserve.kinds.encoders.score_api import SCORE, ScoreEndpoint
from ovserve.kinds.encoders.spec import (
    CAUSAL,
    RERANK,
    RerankAnswer,
    RerankArguments,
    RerankFacts,
    RerankSpec,
)
from ovserve.kinds.payload import TRUNCATED_HEADER, Decoder, HttpPayload, HttpResponse, ignored_header
from ovserve.kinds.resource import Host, ResourceKind, parse_isolation
from ovserve.protos.options_pb2 import RerankCalculatorOVOptions

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


def _parse(node: Node) -> RerankOptions:
    options = node.options(RerankCalculatorOVOptions)
    if options is None:
        raise node.error("required: node_options with mediapipe.RerankCalculatorOVOptions", "node_options")
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


async def _make(node: Node, options: RerankOptions, engine: CallClient, host: Host) -> RerankResource:
    facts = engine.facts
    assert isinstance(facts, RerankFacts), "the facts of RerankSpec"
    admitted = host.admit_calls(engine, {})
    return RerankResource(
        admitted,
        facts,
        host.bodies,
        host.metrics.of(EncoderMetrics),
        special=False,
        max_allowed_chunks=options.max_allowed_chunks,
    )


RERANKER = ResourceKind(
    tag="RERANK_NODE_RESOURCES",
    packet_type=RerankResource,
    options_type=RerankCalculatorOVOptions,
    parse=_parse,
    spec=lambda options: options.spec,
    make=_make,
    check=lambda node, options: check_files(node, options.spec.model_path),
)


@calculator("RerankCalculatorOV")
class RerankCalculatorOV(EncoderCalculator):
    resource = RERANKER
    endpoints: ClassVar[Mapping[str, Decoder]] = {NAME: Rerank(), SCORE: ScoreEndpoint()}

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
