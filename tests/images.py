"""Graphs of image generation, and the pixels of answers. The models are scripts/image_model.py's."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image


def graph(models_path: str, *options: str) -> str:
    fields = "\n".join([f'models_path: "{models_path}"', *options])
    return f"""
input_stream: "HTTP_REQUEST_PAYLOAD:input"
output_stream: "HTTP_RESPONSE_PAYLOAD:output"
node {{
  name: "ImageGenExecutor"
  calculator: "ImageGenCalculator"
  input_stream: "HTTP_REQUEST_PAYLOAD:input"
  input_side_packet: "IMAGE_GEN_NODE_RESOURCES:pipes"
  output_stream: "HTTP_RESPONSE_PAYLOAD:output"
  node_options: {{
    [type.googleapis.com / mediapipe.ImageGenCalculatorOptions]: {{ {fields} }}
  }}
}}
"""


def opened(b64_json: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(b64_json, validate=True)))


def pixels(b64_json: str) -> Any:
    """int [height, width, 3]"""
    return np.asarray(opened(b64_json).convert("RGB")).astype(int)
