"""Requests of an image node, adapted to the facts of its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ovserve.kinds.images.api import decode_drawing
from ovserve.kinds.images.node import ImageResource
from ovserve.kinds.images.spec import ImageFacts, text_encoders
from scripts.vision_parts import write_json


@pytest.mark.parametrize("default", [0, 256])
def test_max_sequence_length_goes_to_models_that_have_it(default: int) -> None:
    unused: Any = None
    model = ImageFacts(max_sequence_length=default, engine="", load_seconds=0.0)
    images = ImageResource(unused, model, unused, unused, unused, unused)
    asked = decode_drawing(b'{"model": "m", "prompt": "a", "max_sequence_length": 5, "style": "x", "z": 1}')
    adapted = images.adapted(asked)
    assert adapted.request.max_sequence_length == (5 if default else None)
    assert adapted.ignored == (("style", "z") if default else ("max_sequence_length", "style", "z"))


def test_text_encoders_are_those_of_the_index(tmp_path: Path) -> None:
    index = {
        "_class_name": "StableDiffusion3Pipeline",
        "text_encoder": ["transformers", "CLIPTextModelWithProjection"],
        "text_encoder_2": [None, None],
        "text_encoder_3": ["transformers", "T5EncoderModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
    }
    write_json(tmp_path / "model_index.json", index)
    assert text_encoders(tmp_path) == {
        "text_encoder": "CLIPTextModelWithProjection",
        "text_encoder_3": "T5EncoderModel",
    }
