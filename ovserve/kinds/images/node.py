"""ImageGenCalculator: texts and images to images, with OVMS's options and graph files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

import msgspec

from ovserve.engine.client.call_client import CallClient
from ovserve.errors import Internal
from ovserve.graph import Context, Input, Node, Output, SidePacket, calculator
from ovserve.kinds.images.api import (
    BRACKETS,
    EDITS,
    IMAGE,
    MASK,
    Drawing,
    Edits,
    EventWriter,
    Generations,
    ImageEditRequest,
    decode_drawing,
    decode_edit,
    images_body,
)
from ovserve.kinds.images.metrics import ImageMetrics
from ovserve.kinds.images.options import (
    ImageOptions,
    check_image_files,
    parse_image_options,
    size_text,
)
from ovserve.kinds.images.resource import ImageResource
from ovserve.kinds.images.spec import GENERATE, GenerateArguments, ImageFacts, ImageItem, Raster
from ovserve.kinds.payload import (
    TRUNCATED_HEADER,
    AnswerPacket,
    Decoder,
    HttpCalculator,
    HttpPayload,
    HttpResponse,
    ignored_header,
)
from ovserve.kinds.resource import EngineCalculator, Host, ItemStream, ResourceKind
from ovserve.protos.options_pb2 import ImageGenCalculatorOptions

EVENT_STREAM = "text/event-stream"


async def _make(node: Node, options: ImageOptions, engine: CallClient, host: Host) -> ImageResource:
    facts = engine.facts
    assert isinstance(facts, ImageFacts), "the facts of ImageSpec"
    largest, own = options.limits.max_size, (facts.width, facts.height)
    if options.limits.default_size is None and (own[0] > largest[0] or own[1] > largest[1]):
        raise node.error(
            f"the model draws {size_text(own)}, more than max_resolution, which is {size_text(largest)}",
            "default_resolution",
        )
    admitted = host.admit_calls(engine, {})
    return ImageResource(admitted, facts, options, host.images, host.bodies, host.metrics.of(ImageMetrics))


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
    endpoints: ClassVar[Mapping[str, Decoder]] = {d.name: d for d in (Generations(), Edits())}

    request = Input("HTTP_REQUEST_PAYLOAD", HttpPayload)
    response: Output[AnswerPacket] = Output("HTTP_RESPONSE_PAYLOAD", AnswerPacket)
    images = SidePacket("IMAGE_GEN_NODE_RESOURCES", ImageResource)

    async def process(self, cc: Context) -> None:
        payload = cc[self.request]
        if payload is None:
            return
        images = cc[self.images]
        call = await (_edit if payload.endpoint == EDITS else _generation)(images, payload)
        stream = await images.engine.call(GENERATE, call.arguments, call.blobs)
        try:
            if call.drawing.request.stream:
                await self._events(cc, images, call, stream)
            else:
                cc.send(self.response, await _whole(images, call, stream))
        finally:
            stream.cancel()  # no effect on one that has ended

    async def _events(self, cc: Context, images: ImageResource, call: _Call, stream: ItemStream) -> None:
        writer = EventWriter("image_edit" if call.edits else "image_generation", call.arguments.format)
        at = cc.timestamp
        while (message := await stream.next()) is not None:
            item: ImageItem = message.decode(ImageItem)
            event = _event(writer, images, call, item, b"".join(message.blobs))
            first = HttpResponse(event, EVENT_STREAM, _headers(call, item.truncated), more=True)
            cc.send(self.response, event if at > cc.timestamp else first, at)
            at += 1
            await cc.flush()


class _Call(NamedTuple):
    drawing: Drawing
    arguments: GenerateArguments
    blobs: tuple[bytes, ...] = ()

    @property
    def edits(self) -> bool:
        return bool(self.blobs)


async def _generation(images: ImageResource, payload: HttpPayload) -> _Call:
    """Raises InvalidArgument."""
    images.require("generate")
    drawing = images.adapted(await images.bodies.run(payload.head.large, decode_drawing, payload.body))
    return _Call(drawing, images.arguments(drawing, images.size(drawing.size)))


async def _edit(images: ImageResource, payload: HttpPayload) -> _Call:
    """Raises InvalidArgument."""
    decoded = await images.bodies.run(payload.head.large, decode_edit, payload.body, bool(payload.files))
    drawing = images.adapted(decoded)
    request = drawing.request
    assert isinstance(request, ImageEditRequest), "what an edit is decoded to"
    sources: dict[str, str | Path] = {IMAGE: request.image}
    if request.mask is not None:
        sources[MASK] = request.mask
    for field, file in payload.files.items():
        sources[field.removesuffix(BRACKETS)] = file.path
    images.require("inpaint" if MASK in sources else "edit")
    arguments = images.arguments(drawing, None, edit=True)  # what is wrong with it costs no decoding
    image, mask = await images.rasters(drawing, sources)
    raster = Raster(image.width, image.height)
    arguments = msgspec.structs.replace(
        arguments,
        options=arguments.options | {"width": image.width, "height": image.height},
        image=raster,
        mask=None if mask is None else raster,
    )
    return _Call(drawing, arguments, (image.rgb,) if mask is None else (image.rgb, mask.rgb))


def _event(writer: EventWriter, images: ImageResource, call: _Call, item: ImageItem, image: bytes) -> bytes:
    size = f"{item.width}x{item.height}"
    match item.kind:
        case "step":
            return writer.progress(item.index, item.step, item.steps)
        case "partial":
            images.metrics.sent_partial()
            return writer.partial(item.index, item.partial, image, size)
    images.metrics.count_image(item.steps, item.seconds, edited=call.edits)
    return writer.completed(item.index, image, size, call.arguments.seeds[item.index])


async def _whole(images: ImageResource, call: _Call, stream: ItemStream) -> HttpResponse:
    images_and_seeds: list[tuple[bytes, int]] = []
    size, seeds = "", call.arguments.seeds
    truncated: tuple[str, ...] = ()
    while (message := await stream.next()) is not None:
        item: ImageItem = message.decode(ImageItem)
        images.metrics.count_image(item.steps, item.seconds, edited=call.edits)
        size, truncated = f"{item.width}x{item.height}", item.truncated
        images_and_seeds.append((b"".join(message.blobs), seeds[item.index]))
    if len(images_and_seeds) != len(seeds):
        raise Internal(f"the engine drew {len(images_and_seeds)} images of {len(seeds)}")
    body = images_body(images_and_seeds, size, call.arguments.format)
    return HttpResponse(body, headers=_headers(call, truncated))


def _headers(call: _Call, truncated: tuple[str, ...]) -> dict[str, str]:
    headers = ignored_header(call.drawing.ignored)
    return headers | {TRUNCATED_HEADER: ", ".join(truncated)} if truncated else headers
