"""The body of POST images/edits: a form with files, or JSON with data URLs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from ovserve.api.openai.body import decode_fields
from ovserve.api.openai.common import encode
from ovserve.api.openai.describe.operation import doc
from ovserve.errors import InvalidArgument
from ovserve.kinds.images.requests import EDITS, Drawing, ImageRequest, checked

IMAGE, MASK = "image", "mask"
BRACKETS = "[]"  # some clients name a list of one file so
_NUMBER = re.compile(r"\s*-?\d{1,20}(\.\d{1,20})?([eE][-+]?\d{1,3})?\s*")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class ImageEditRequest(ImageRequest, kw_only=True):
    image: Annotated[
        str,
        doc("a file of the form; in JSON a data URL, or a URL as chats take them"),
    ]
    mask: Annotated[
        str | None,
        doc("its transparent parts are repainted, or its white ones if it has none"),
    ] = None


_decoder = msgspec.json.Decoder(ImageEditRequest)


class Edits:
    """The endpoint."""

    name = EDITS

    def decode(self, body: bytes) -> Drawing:
        return decode_edit(body)


def decode_edit(body: bytes, form: bool = False) -> Drawing:
    """`form`: the values are texts. Raises InvalidArgument naming the field."""
    return checked(_of_form(body) if form else body, _decoder)


def _of_form(body: bytes) -> bytes:
    """Return the JSON object that the texts of a form stand for."""
    made: dict[str, Any] = {}
    for field, raw in decode_fields(body).items():
        value = msgspec.json.decode(raw)
        name = field.removesuffix(BRACKETS) if field.removesuffix(BRACKETS) in (IMAGE, MASK) else field
        if name in made:
            raise InvalidArgument(f"{name}: expected one, got several", param=name)
        if name in (IMAGE, MASK) and isinstance(value, list):
            if len(value) != 1:
                raise InvalidArgument(f"{name}: expected one image, got {len(value)}", param=name)
            (value,) = value
        made[name] = _typed(name, value)
    return encode(made)


def _typed(name: str, value: Any) -> Any:
    kind = KINDS.get(name)
    if not isinstance(value, str) or kind is None:
        return value
    if kind is dict:
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value  # the decoder says what is expected
    if kind is bool:
        return _FLAGS.get(value.strip().lower(), value)
    if not _NUMBER.fullmatch(value):
        return value
    number = float(value)
    return int(value) if value.strip().lstrip("-").isdigit() else number


# The fields of a form that are not texts.
KINDS: Mapping[str, type] = {
    **dict.fromkeys(
        (
            "n", "num_images_per_prompt", "width", "height", "num_inference_steps", "seed", "rng_seed",
            "max_sequence_length", "output_compression", "partial_images", "guidance_scale", "strength",
        ),
        float,
    ),
    "stream": bool,
    "lora_alphas": dict,
}  # fmt: skip
