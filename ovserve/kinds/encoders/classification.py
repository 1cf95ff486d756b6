"""ClassificationCalculatorOV: texts to the labels of a sequence classifier. OVMS has no such node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ovserve.engine.client.call_client import CallClient
from ovserve.graph import Context, Node, SidePacket, calculator
from ovserve.kinds.encoders import spec as encoders
from ovserve.kinds.encoders.metrics import EncoderMetrics
from ovserve.kinds.encoders.options import check_files, encoder_place, input_length
from ovserve.kinds.encoders.resource import EncoderCalculator, EncoderResource
from ovserve.kinds.encoders.score_api import (
    CLASSIFY,
    ClassifyEndpoint,
    classification_body,
    decode_classification,
)
from ovserve.kinds.encoders.spec import (
    SEPARATOR,
    ClassificationFacts,
    ClassificationSpec,
    ClassifyAnswer,
    ClassifyArguments,
)
from ovserve.kinds.payload import TRUNCATED_HEADER, Decoder, HttpPayload, HttpResponse, ignored_header
from ovserve.kinds.resource import Host, ResourceKind, parse_isolation
from ovserve.protos.options_pb2 import ClassificationCalculatorOVOptions


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


def _parse(node: Node) -> ClassificationOptions:
    options = node.options(ClassificationCalculatorOVOptions)
    if options is None:
        raise node.error(
            "required: node_options with mediapipe.ClassificationCalculatorOVOptions", "node_options"
        )
    place = encoder_place(node, options)
    spec = ClassificationSpec(
        place.path,
        place.device,
        place.properties,
        isolation=parse_isolation(node, options.isolation),
        max_length=input_length(node, options, place),
    )
    return ClassificationOptions(spec, options.truncate)


async def _make(
    node: Node, options: ClassificationOptions, engine: CallClient, host: Host
) -> ClassificationResource:
    facts = engine.facts
    assert isinstance(facts, ClassificationFacts), "the facts of ClassificationSpec"
    admitted = host.admit_calls(engine, {})
    return ClassificationResource(
        admitted, facts, host.bodies, host.metrics.of(EncoderMetrics), truncate=options.truncate
    )


CLASSIFIER = ResourceKind(
    tag="CLASSIFICATION_NODE_RESOURCES",
    packet_type=ClassificationResource,
    options_type=ClassificationCalculatorOVOptions,
    parse=_parse,
    spec=lambda options: options.spec,
    make=_make,
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
