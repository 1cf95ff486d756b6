"""ImageGenCalculator: texts and images to images, with OVMS's options and graph files. Its side packet makes
a request the arguments of one engine call.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, NamedTuple

import msgspec

from ovserve.engine.client.calls import CallClient
from ovserve.errors import Internal, InvalidArgument, ModelNotFound, UnsupportedParameter
from ovserve.graph import Context, Input, Node, Output, SidePacket, calculator
from ovserve.kinds.images.api import (
    BRACKETS,
    EDITS,
    GENERATIONS,
    IMAGE,
    MASK,
    MAX_SEED,
    Drawing,
    ImageEditRequest,
    ImageUsage,
    decode_drawing,
    decode_edit,
    image_event,
    images_body,
)
from ovserve.kinds.images.metrics import ImageMetrics
from ovserve.kinds.images.options import (
    ImageLimits,
    ImageOptions,
    Size,
    check_image_files,
    parse_image_options,
    size_text,
)
from ovserve.kinds.images.spec import GENERATE, PNG, GenerateArguments, ImageFacts, ImageItem, Raster, Task
from ovserve.kinds.payload import (
    EVENT_STREAM,
    TRUNCATED_HEADER,
    AnswerPacket,
    Decoder,
    HttpCalculator,
    HttpPayload,
    HttpResponse,
    JsonEndpoint,
    ignored_header,
)
from ovserve.kinds.resource import Caller, EngineCalculator, Host, ItemStream, ResourceKind, facts_of
from ovserve.llm.images import Image, RasterForm
from ovserve.protos.options_pb2 import ImageGenCalculatorOptions
from ovserve.sandbox.bodies import Bodies
from ovserve.sandbox.images.loader import Media

# Options that go to the library by the name they have in the request.
PASSED = (
    "prompt_2", "prompt_3", "max_sequence_length",
    "negative_prompt", "negative_prompt_2", "negative_prompt_3",
)  # fmt: skip
NAMES: Mapping[Task, str] = {
    "generate": "Text-to-image", "edit": "Image-to-image", "inpaint": "Inpainting",
}  # fmt: skip


class ImageResource(msgspec.Struct, frozen=True):
    engine: Caller
    model: ImageFacts
    options: ImageOptions
    images: Media
    bodies: Bodies
    metrics: ImageMetrics

    @property
    def limits(self) -> ImageLimits:
        return self.options.limits

    @property
    def variants(self) -> Collection[str]:
        return self.options.aliases

    @property
    def base_name(self) -> bool:
        return self.options.base_name

    def facts(self) -> Mapping[str, object]:
        limits = self.limits
        fields = facts_of(self.model) | {
            "max_resolution": size_text(limits.max_size),
            "resolution": [size_text(size) for size in limits.sizes],
            "max_num_images_per_prompt": limits.max_images,
            "max_num_inference_steps": limits.max_steps,
            "default_num_inference_steps": limits.steps,
        }
        if self.options.aliases:
            fields["model_names"] = sorted(self.options.aliases)
        return fields

    def adapted(self, drawing: Drawing) -> Drawing:
        """Return the request without what has no effect on this model, which `ignored` lists then."""
        if self.model.max_sequence_length or drawing.request.max_sequence_length is None:
            return drawing
        request = msgspec.structs.replace(drawing.request, max_sequence_length=None)
        return replace(
            drawing, request=request, ignored=tuple(sorted((*drawing.ignored, "max_sequence_length")))
        )

    def arguments(self, drawing: Drawing, size: Size | None, *, edit: bool = False) -> GenerateArguments:
        """Return the arguments of the call. Raises InvalidArgument naming the field that breaks a limit."""
        request, limits = drawing.request, self.limits
        count = limits.images if drawing.count is None else drawing.count
        if count > limits.max_images:
            raise InvalidArgument.at(
                "n", f"expected at most {limits.max_images}, the model's limit, got {count}"
            )
        options: dict[str, str | int | float] = {
            name: value for name in PASSED if (value := getattr(request, name)) is not None
        }
        if size is not None:
            options |= {"width": size[0], "height": size[1]}
        options["num_inference_steps"] = steps = self._steps(request.num_inference_steps)
        if (guidance := self._guidance(request.guidance_scale)) is not None:
            options["guidance_scale"] = guidance
        if "negative_prompt" in options and (guidance or self.model.guidance_scale) <= 1:
            raise InvalidArgument.at("negative_prompt", "without effect at a guidance_scale of 1 or less")
        if edit and request.strength is not None:
            if int(steps * request.strength) < 1:
                raise InvalidArgument.at("strength", f"{request.strength:g} of {steps} steps leaves none")
            options["strength"] = request.strength
        return GenerateArguments(
            request.prompt,
            _seeds(drawing, count),
            options,
            adapters=self._adapters(drawing),
            partial_images=request.partial_images or 0,
            format=request.output_format or PNG,
            quality=100 if request.output_compression is None else request.output_compression,
        )

    def size(self, value: Size | None) -> Size | None:
        """Return the size to draw; None: the library decides. Raises InvalidArgument."""
        limits, multiple = self.limits, self.model.multiple
        if value is None:
            own = (self.model.width, self.model.height) if self.model.width else None
            return limits.default_size or own
        if limits.sizes and value not in limits.sizes:
            allowed = ", ".join(map(size_text, limits.sizes))
            raise InvalidArgument.at("size", f"expected one of {allowed}, got {size_text(value)}")
        if any(side % multiple or not side for side in value):
            raise InvalidArgument.at("size", f"expected multiples of {multiple}, got {size_text(value)}")
        if value[0] > limits.max_size[0] or value[1] > limits.max_size[1]:
            raise InvalidArgument.at(
                "size", f"expected at most {size_text(limits.max_size)}, got {size_text(value)}"
            )
        return value

    async def rasters(
        self, drawing: Drawing, sources: Mapping[str, str | Path]
    ) -> tuple[Image, Image | None]:
        """Return the image to edit and its mask, in the size to draw. Raises InvalidArgument."""
        limits, multiple = self.limits, self.model.multiple
        width, height = limits.default_size or (0, 0)
        if drawing.size is not None:
            width, height = self.size(drawing.size) or (0, 0)
        form = RasterForm(width, height, limits.max_size, multiple)
        image = await self.images.raster(sources["image"], form, "image")
        if "mask" not in sources:
            return image, None
        form = RasterForm(image.width, image.height, mask=True)
        return image, await self.images.raster(sources["mask"], form, "mask")

    def require(self, task: Task) -> None:
        """Raises UnsupportedParameter for what the model cannot do."""
        if task not in self.model.tasks:
            raise UnsupportedParameter(
                f"{NAMES[task]} pipeline is not available for this model; "
                f"it can {', '.join(self.model.tasks)}",
                param="mask" if task == "inpaint" else "model",
            )

    def _steps(self, value: int | None) -> int:
        if value is None:
            return self.limits.steps
        if value > self.limits.max_steps:
            raise InvalidArgument.at(
                "num_inference_steps", f"expected at most {self.limits.max_steps}, got {value}"
            )
        return value

    def _guidance(self, value: float | None) -> float | None:
        fixed = self.limits.guidance
        if fixed is not None and value is not None and value != fixed:
            raise InvalidArgument.at(
                "guidance_scale", f"this model is loaded for {fixed:g} alone, got {value:g}"
            )
        return value if fixed is None else fixed

    def _adapters(self, drawing: Drawing) -> dict[str, float]:
        """Return the alphas of the adapters that the model's name or `lora_alphas` turns on."""
        if not self.base_name and drawing.request.model not in self.options.aliases:
            names = ", ".join(self.options.aliases)
            raise ModelNotFound(
                f"model {drawing.request.model!r} is only served with its adapters: {names}", param="model"
            )
        alphas = dict(self.options.aliases.get(drawing.request.model, {}))
        requested_alphas = drawing.request.lora_alphas
        if requested_alphas is None:
            return alphas
        adapters = self.model.adapters if self.options.spec.adapter_mode == "DYNAMIC" else ()
        if not adapters:
            raise UnsupportedParameter.at("lora_alphas", "this model has no adapters that requests can set")
        for alias in requested_alphas:
            if alias not in adapters:
                raise InvalidArgument.at("lora_alphas", f"expected {', '.join(adapters)}, got {alias[:64]!r}")
        return alphas | requested_alphas


def _seeds(drawing: Drawing, count: int) -> list[int]:
    """Return a seed per image. Raises InvalidArgument where the last one would be past the largest."""
    most = MAX_SEED - count + 1
    first = secrets.randbelow(most + 1) if drawing.seed is None else drawing.seed
    if first > most:
        field = drawing.seed_field
        raise InvalidArgument.at(
            field, f"expected 0 to {most} for {count} images, which have the seeds from it on, got {first}"
        )
    return list(range(first, first + count))


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
    endpoints: ClassVar[Mapping[str, Decoder]] = {
        e.name: e for e in (JsonEndpoint(GENERATIONS, decode_drawing), JsonEndpoint(EDITS, decode_edit))
    }

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
        at = cc.timestamp
        while (message := await stream.next()) is not None:
            item: ImageItem = message.decode(ImageItem)
            event = _event(images, call, item, b"".join(message.blobs))
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


def _event(images: ImageResource, call: _Call, item: ImageItem, image: bytes) -> bytes:
    prefix, format_ = "image_edit" if call.edits else "image_generation", call.arguments.format
    if item.kind == "partial":
        images.metrics.partial += 1
        name = f"{prefix}.partial_image"
        return image_event(name, item, image, format_, partial_image_index=item.partial)
    images.metrics.count_image(item.steps, item.seconds, edited=call.edits)
    seed = call.arguments.seeds[item.index]
    return image_event(f"{prefix}.completed", item, image, format_, seed=seed, usage=ImageUsage())


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
