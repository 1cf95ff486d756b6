"""The bodies of POST images/generations and images/edits, checked as far as no model is needed, and their
answers.

An edit is a form with files, or JSON with data URLs. OpenAI's parameters are supported, and OVMS's.
Source: https://platform.openai.com/docs/api-reference/images, read 2026-11-22

An answer is one body, or a stream of events. Images come from the engine in base64 and are put into it as
they are.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ovserve.api.openai.body import decode_body, decode_fields, refuse_unsupported
from ovserve.api.openai.common import encode
from ovserve.api.openai.operation import Operation, Refused, doc
from ovserve.errors import InvalidArgument
from ovserve.kinds.images.spec import ImageItem
from ovserve.kinds.payload import packed

GENERATIONS, EDITS = "images/generations", "images/edits"
MAX_PROMPT = 32_000  # characters, OpenAI's limit
MAX_SEED = 2**32 - 1  # the library's generator takes 32 bits of a seed
MAX_GUIDANCE = 1000.0  # far above any use; a larger one overflows in the model and draws nothing
TEXTS = (
    "prompt", "prompt_2", "prompt_3", "negative_prompt", "negative_prompt_2", "negative_prompt_3",
)  # fmt: skip

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Seed = Annotated[int, Meta(ge=0, le=MAX_SEED)]
Text = Annotated[str, Meta(max_length=MAX_PROMPT)]

REFUSED: Mapping[str, Refused] = {
    "background": Refused("images have no transparent parts", ("auto", "opaque")),
    "response_format": Refused("Only b64_json is supported.", ("b64_json",)),
}
WITHOUT_EFFECT = ("quality", "style", "moderation", "user", "input_fidelity")
REPORTED = dict.fromkeys(WITHOUT_EFFECT, "without effect") | {"strength": "only of edits"}


class ImageFields(msgspec.Struct, kw_only=True):
    """The fields that both endpoints have."""

    model: Annotated[str, doc("the name under which a graph is served, or a LoRA adapter of it")]
    prompt: Annotated[Text, doc("what to draw")]
    n: Annotated[Count | None, doc("number of images; image i has the seed plus i")] = None
    num_images_per_prompt: Annotated[Count | None, doc("the same as n")] = None
    size: Annotated[str | None, doc("WIDTHxHEIGHT in multiples of 8, or auto for the graph's default")] = None
    width: Annotated[Count | None, doc("in pixels; not with size")] = None
    height: Annotated[Count | None, doc("in pixels; not with size")] = None
    num_inference_steps: Annotated[Count | None, doc("steps of an image; default: the graph's")] = None
    guidance_scale: Annotated[
        Annotated[float, Meta(ge=0, le=MAX_GUIDANCE)] | None,
        doc("how closely the image follows the prompt; default: the model's"),
    ] = None
    negative_prompt: Annotated[Text | None, doc("what not to draw; needs a guidance_scale above 1")] = None
    prompt_2: Annotated[Text | None, doc("for the second text encoder, of models with several")] = None
    prompt_3: Annotated[Text | None, doc("for the third text encoder")] = None
    negative_prompt_2: Annotated[Text | None, doc("for the second text encoder")] = None
    negative_prompt_3: Annotated[Text | None, doc("for the third text encoder")] = None
    seed: Annotated[Seed | None, doc("of the noise; default: a random one, which the answer names")] = None
    rng_seed: Annotated[Seed | None, doc("the same as seed")] = None
    max_sequence_length: Annotated[Count | None, doc("tokens of the text encoder of SD3 and Flux")] = None
    strength: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        doc("how much of the image changes"),
    ] = None
    lora_alphas: Annotated[
        dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None,
        doc("weights of LoRA adapters by alias; others are off"),
    ] = None
    output_format: Annotated[Literal["png", "jpeg", "webp"] | None, doc("of the images' files")] = None
    output_compression: Annotated[
        Annotated[int, Meta(ge=0, le=100)] | None, doc("quality of jpeg and webp")
    ] = None
    stream: Annotated[bool | None, doc("events for partial images and images")] = None
    partial_images: Annotated[
        Annotated[int, Meta(ge=0, le=3)] | None, doc("unfinished images per image; needs stream")
    ] = None
    quality: Annotated[str | None, doc("without effect")] = None
    style: Annotated[str | None, doc("without effect")] = None
    moderation: Annotated[str | None, doc("without effect")] = None
    user: Annotated[str | None, doc("without effect")] = None
    input_fidelity: Annotated[str | None, doc("without effect")] = None


class ImageRequest(ImageFields, kw_only=True):
    """A body of images/generations."""


@dataclass(frozen=True)
class Drawing:
    """A checked body. Sizes in pixels; None where the graph decides."""

    request: ImageFields
    size: tuple[int, int] | None
    count: int | None
    seed: int | None
    ignored: tuple[str, ...]

    @property
    def texts(self) -> dict[str, str]:
        """Return the texts besides the prompt that the request has."""
        fields = ((name, getattr(self.request, name)) for name in TEXTS[1:])
        return {name: text for name, text in fields if text is not None}

    @property
    def seed_field(self) -> str:
        """Return the name under which the request has its seed."""
        return "seed" if self.request.rng_seed is None else "rng_seed"


_decoder = msgspec.json.Decoder(ImageRequest)


def decode_drawing(body: bytes) -> Drawing:
    """Raises InvalidArgument naming the field."""
    return checked(body, _decoder)


def checked(body: bytes, decoder: msgspec.json.Decoder[Any]) -> Drawing:
    """Decode and check a body of either endpoint. Raises InvalidArgument naming the field."""
    request, unknown = decode_body(body, decoder)
    without = REPORTED if type(request) is ImageRequest else WITHOUT_EFFECT
    refuse_unsupported(unknown, REFUSED)
    for name in TEXTS:
        packed(getattr(request, name), name)
    if request.partial_images and not request.stream:
        raise InvalidArgument.at("partial_images", "only with stream: true")
    if request.output_format in (None, "png") and request.output_compression not in (None, 100):
        raise InvalidArgument.at(
            "output_compression", f"png has none, got {request.output_compression}; use jpeg or webp"
        )
    return Drawing(
        request,
        _size(request),
        _one_of(request, "n", "num_images_per_prompt"),
        _one_of(request, "seed", "rng_seed"),
        tuple(sorted([*unknown, *(n for n in without if getattr(request, n) not in (None, "auto"))])),
    )


def _one_of(request: ImageFields, name: str, other: str) -> Any:
    if getattr(request, name) is not None and getattr(request, other) is not None:
        raise InvalidArgument.at(other, f"not with {name}, which is the same")
    return getattr(request, name) if getattr(request, name) is not None else getattr(request, other)


def _size(request: ImageFields) -> tuple[int, int] | None:
    text, width, height = request.size, request.width, request.height
    for name in ("width", "height"):
        if text is not None and getattr(request, name) is not None:
            raise InvalidArgument.at(name, "not with size")
    if (width is None) != (height is None):
        name = "width" if width is None else "height"
        raise InvalidArgument.at(name, "required with the other side of the image")
    if width is not None and height is not None:
        return width, height
    if text is None or text == "auto":
        return None
    sides = text.split("x")
    if len(sides) != 2 or not all(s.isascii() and s.isdigit() and len(s) < 7 and int(s) for s in sides):
        raise InvalidArgument.expected("size", "auto or WIDTHxHEIGHT such as 512x512", text)
    return int(sides[0]), int(sides[1])


IMAGE, MASK = "image", "mask"
BRACKETS = "[]"  # some clients name a list of one file so


class ImageEditRequest(ImageFields, kw_only=True):
    image: Annotated[
        str,
        doc("a file of the form; in JSON a data URL, or a URL as chats take them"),
    ]
    mask: Annotated[
        str | None,
        doc("its transparent parts are repainted, or its white ones if it has none"),
    ] = None


_edit_decoder = msgspec.json.Decoder(ImageEditRequest)
_form_decoder = msgspec.json.Decoder(ImageEditRequest, strict=False)  # it also reads numbers that are texts


def decode_edit(body: bytes, form: bool = False) -> Drawing:
    """`form`: the values are texts. Raises InvalidArgument naming the field."""
    return checked(_of_form(body), _form_decoder) if form else checked(body, _edit_decoder)


def _of_form(body: bytes) -> bytes:
    """Return the JSON object that the texts of a form stand for."""
    fields: dict[str, Any] = {}
    for field, raw in decode_fields(body).items():
        value = msgspec.json.decode(raw)
        name = field.removesuffix(BRACKETS) if field.removesuffix(BRACKETS) in (IMAGE, MASK) else field
        if name in fields:
            raise InvalidArgument.at(name, "expected one, got several")
        if name in (IMAGE, MASK) and isinstance(value, list):
            if len(value) != 1:
                raise InvalidArgument.at(name, f"expected one image, got {len(value)}")
            (value,) = value
        if name == "lora_alphas" and isinstance(value, str):
            with suppress(ValueError, RecursionError):  # the decoder says what is expected
                value = json.loads(value)
        fields[name] = value.strip() if name not in TEXTS and isinstance(value, str) else value
    return encode(fields)


Background = Literal["opaque"]
OPAQUE: Background = "opaque"
_HOLE = b'"b64_json":""'  # where the image goes in an encoded answer


class ImageUsage(msgspec.Struct):
    """Images have no tokens here; OpenAI's clients require the fields."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    input_tokens_details: dict[str, int] = msgspec.field(
        default_factory=lambda: {"image_tokens": 0, "text_tokens": 0}
    )


class ImageData(msgspec.Struct):
    b64_json: str
    seed: int


class ImageList(msgspec.Struct):
    created: int
    data: list[ImageData]
    background: Background
    output_format: str
    size: str
    usage: ImageUsage


class ImageEvent(msgspec.Struct):
    """An event of a stream. Its type ends in partial_image or completed."""

    type: str
    image_index: int
    b64_json: str
    created_at: int
    background: Background
    output_format: str
    quality: str
    size: str
    partial_image_index: int | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    usage: ImageUsage | UnsetType = UNSET


def images_body(images: Sequence[tuple[bytes, int]], size: str, output_format: str) -> bytes:
    """Return the body of base64 images with their seeds."""
    head = ImageList(int(time.time()), [], OPAQUE, output_format, size, ImageUsage())
    data = b",".join(b'{"b64_json":"%b","seed":%d}' % image for image in images)
    return encode(head).replace(b'"data":[]', b'"data":[' + data + b"]", 1)


def image_event(name: str, item: ImageItem, image: bytes, output_format: str, **fields: Any) -> bytes:
    """Return the event of a base64 image, by its name."""
    event = ImageEvent(
        name,
        item.index,
        b64_json="",
        created_at=int(time.time()),
        background=OPAQUE,
        output_format=output_format,
        quality="auto",
        size=f"{item.width}x{item.height}",
        **fields,
    )
    data = encode(event).replace(_HOLE, b'"b64_json":"' + image + b'"', 1)
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


DEFAULTS = {
    "n": 1, "size": "auto", "output_format": "png", "output_compression": 100, "partial_images": 0,
}  # fmt: skip
OPERATIONS = (
    Operation(
        "POST",
        "/v3/images/generations",
        "An image, or several, of a text.",
        answer=ImageList,
        event=ImageEvent,
        request=ImageRequest,
        example={"model": "image_generation", "prompt": "a red sofa", "size": "512x512", "seed": 7},
        defaults=DEFAULTS,
        refused=REFUSED,
        reported=REPORTED,
        declared=True,
    ),
    Operation(
        "POST",
        "/v3/images/edits",
        "An image, or several, of an image and a text; with a mask, of the masked part.",
        answer=ImageList,
        event=ImageEvent,
        request=ImageEditRequest,
        example={"model": "image_generation", "prompt": "a red sofa", "image": "data:image/png;base64,..."},
        defaults=DEFAULTS,
        refused=REFUSED,
        reported=dict.fromkeys(WITHOUT_EFFECT, "without effect"),
        declared=True,
    ),
)
