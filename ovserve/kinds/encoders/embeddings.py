"""EmbeddingsCalculatorOV: texts to vectors, and the cosine of pairs of texts, with OVMS's options and graph
files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ovserve.api.openai.common import encode
from ovserve.engine.client.call_client import CallClient
from ovserve.errors import InvalidArgument
from ovserve.graph import Context, Node, SidePacket, calculator
from ovserve.kinds.encoders.embeddings_api import NAME, Embed, Embeddings, decode_embeddings, embeddings_body
from ovserve.kinds.encoders.metrics import EncoderMetrics
from ovserve.kinds.encoders.options import check_files, encoder_place, input_length
from ovserve.kinds.encoders.resource import EncoderCalculator, EncoderResource, score
from ovserve.kinds.encoders.score_api import SCORE, ScoreEndpoint
from ovserve.kinds.encoders.spec import (
    EMBED,
    SEPARATOR,
    EmbedAnswer,
    EmbedArguments,
    EmbeddingFacts,
    EmbeddingSpec,
)
from ovserve.kinds.payload import TRUNCATED_HEADER, Decoder, HttpPayload, HttpResponse, ignored_header
from ovserve.kinds.resource import Host, ResourceKind, parse_isolation
from ovserve.protos.options_pb2 import EmbeddingsCalculatorOVOptions

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


def _parse(node: Node) -> EmbeddingsOptions:
    options = node.options(EmbeddingsCalculatorOVOptions)
    if options is None:
        raise node.error(
            "required: node_options with mediapipe.EmbeddingsCalculatorOVOptions", "node_options"
        )
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


async def _make(node: Node, options: EmbeddingsOptions, engine: CallClient, host: Host) -> EmbeddingsResource:
    facts = engine.facts
    assert isinstance(facts, EmbeddingFacts), "the facts of EmbeddingSpec"
    admitted = host.admit_calls(engine, {})
    return EmbeddingsResource(
        admitted, facts, host.bodies, host.metrics.of(EncoderMetrics), truncate=options.truncate
    )


EMBEDDINGS = ResourceKind(
    tag="EMBEDDINGS_NODE_RESOURCES",
    packet_type=EmbeddingsResource,
    options_type=EmbeddingsCalculatorOVOptions,
    parse=_parse,
    spec=lambda options: options.spec,
    make=_make,
    check=lambda node, options: check_files(node, options.spec.model_path),
)


@calculator("EmbeddingsCalculatorOV")
class EmbeddingsCalculatorOV(EncoderCalculator):
    resource = EMBEDDINGS
    endpoints: ClassVar[Mapping[str, Decoder]] = {NAME: Embeddings(), SCORE: ScoreEndpoint()}

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
