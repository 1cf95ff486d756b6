"""ImageGenCalculator: texts and images to images, with OVMS's options and graph files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ovserve.api.openai.image_answers import EventWriter, images_body
from ovserve.api.openai.image_requests import Drawing, Generations, decode_drawing
from ovserve.calculators.image_resource import ImageResource
from ovserve.calculators.options.image import (
    ImageOptions,
    check_image_files,
    parse_image_options,
    shown,
)
from ovserve.calculators.payload import AnswerPacket, Decoder, HttpCalculator, HttpPayload, HttpResponse
from ovserve.calculators.resource import EngineCalculator, Host, ItemStream, ResourceKind
from ovserve.calculators.response_writer import ignored_header
from ovserve.engine.client.call_client import CallClient
from ovserve.engine.protocol.images import GENERATE, GenerateArguments, ImageFacts, ImageItem
from ovserve.errors import Internal
from ovserve.graph import Context, Input, Node, Output, SidePacket, calculator
from ovserve.protos.options_pb2 import ImageGenCalculatorOptions

EVENT_STREAM = "text/event-stream"


async def _make(node: Node, options: ImageOptions, engine: CallClient, host: Host) -> ImageResource:
    facts = engine.facts
    assert isinstance(facts, ImageFacts), "the facts of ImageSpec"
    largest, own = options.limits.max_size, (facts.width, facts.height)
    if options.limits.default_size is None and (own[0] > largest[0] or own[1] > largest[1]):
        raise node.error(
            f"the model draws {shown(own)}, more than max_resolution, which is {shown(largest)}",
            "default_resolution",
        )
    admitted = host.admit_calls(engine, {})
    return ImageResource(admitted, facts, options, host.images, host.bodies, host.image_metrics)


IMAGES = ResourceKind(
    tag="IMAGE_GEN_NODE_RESOURCES",
    packet_type=ImageResource,
    options_type=ImageGenCalculatorOptions,
    parse=parse_image_options,
    spec=lambda options: options.spec,
    make=_make,
    check=check_image_files,
)


@calculator("ImageGenCalculator")
class ImageGenCalculator(EngineCalculator, HttpCalculator):
    runs_on = "loop"
    resource = IMAGES
    endpoints: ClassVar[Mapping[str, Decoder]] = {d.name: d for d in (Generations(),)}

    request = Input("HTTP_REQUEST_PAYLOAD", HttpPayload)
    response: Output[AnswerPacket] = Output("HTTP_RESPONSE_PAYLOAD", AnswerPacket)
    images = SidePacket("IMAGE_GEN_NODE_RESOURCES", ImageResource)

    async def process(self, cc: Context) -> None:
        payload = cc[self.request]
        if payload is None:
            return
        images = cc[self.images]
        asked = await images.bodies.run(payload.head.large, decode_drawing, payload.body)
        arguments = images.arguments(asked, images.size(asked.size))
        stream = await images.engine.call(GENERATE, arguments)
        try:
            if asked.request.stream:
                await self._events(cc, images, asked, arguments, stream)
            else:
                cc.send(self.response, await _whole(images, asked, arguments, stream))
        finally:
            stream.cancel()  # no effect on one that has ended

    async def _events(
        self,
        cc: Context,
        images: ImageResource,
        asked: Drawing,
        arguments: GenerateArguments,
        stream: ItemStream,
    ) -> None:
        writer = EventWriter("image_generation", arguments.format)
        at = cc.timestamp
        while (found := await stream.next()) is not None:
            item: ImageItem = found.decode(ImageItem)
            event = _event(writer, images, arguments, item, b"".join(found.blobs))
            headers = ignored_header(asked.ignored)
            begun = at > cc.timestamp
            packet = event if begun else HttpResponse(event, EVENT_STREAM, headers, more=True)
            cc.send(self.response, packet, at)
            at += 1
            await cc.flush()


def _event(
    writer: EventWriter, images: ImageResource, arguments: GenerateArguments, item: ImageItem, image: bytes
) -> bytes:
    size = f"{item.width}x{item.height}"
    match item.kind:
        case "step":
            return writer.progress(item.index, item.step, item.steps)
        case "partial":
            images.metrics.sent_partial()
            return writer.partial(item.index, item.partial, image, size)
    images.metrics.drawn(item.steps, item.seconds)
    return writer.completed(item.index, image, size, arguments.seeds[item.index])


async def _whole(
    images: ImageResource, asked: Drawing, arguments: GenerateArguments, stream: ItemStream
) -> HttpResponse:
    drawn: list[tuple[bytes, int]] = []
    size = ""
    while (found := await stream.next()) is not None:
        item: ImageItem = found.decode(ImageItem)
        images.metrics.drawn(item.steps, item.seconds)
        size = f"{item.width}x{item.height}"
        drawn.append((b"".join(found.blobs), arguments.seeds[item.index]))
    if len(drawn) != len(arguments.seeds):
        raise Internal(f"the engine drew {len(drawn)} images of {len(arguments.seeds)}")
    return HttpResponse(images_body(drawn, size, arguments.format), headers=ignored_header(asked.ignored))
