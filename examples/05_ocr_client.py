"""Reads the text of a picture with graphs/ocr, and draws what was read into a copy of it.

    ovserve pull ocr
    ovserve serve --model_name ocr --model_path graphs/ocr
    python examples/05_ocr_client.py picture.png read.png

It uses KServe's binary extension and nothing but the standard library and Pillow.
"""

from __future__ import annotations

import json
import struct
import sys
import urllib.request
from typing import Any

from PIL import Image, ImageDraw

URL = "http://127.0.0.1:8000"


def read(picture: Image.Image, url: str = URL, model: str = "ocr") -> list[tuple[list[float], str, float]]:
    """Boxes (left, top, right, bottom), texts and scores of a picture's lines."""
    red, green, blue = picture.convert("RGB").split()
    pixels = Image.merge("RGB", (blue, green, red)).tobytes()
    image = {
        "name": "image",
        "datatype": "UINT8",
        "shape": [picture.height, picture.width, 3],
        "parameters": {"binary_data_size": len(pixels)},
    }
    head = json.dumps({"inputs": [image], "parameters": {"binary_data_output": True}}).encode()
    request = urllib.request.Request(
        f"{url}/v2/models/{model}/infer",
        data=head + pixels,
        headers={"Inference-Header-Content-Length": str(len(head))},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        body = answer.read()
        end = int(answer.headers["Inference-Header-Content-Length"])
    found: dict[str, Any] = {}
    for output in json.loads(body[:end])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        found[output["name"]] = body[end : end + size]
        end += size
    boxes = list(struct.iter_unpack("<4f", found["boxes"]))
    scores = [score for (score,) in struct.iter_unpack("<f", found["scores"])]
    return [(list(b), t, s) for b, t, s in zip(boxes, texts(found["texts"]), scores, strict=True)]


def texts(raw: bytes) -> list[str]:
    """The elements of BYTES: each has its length before it, in four bytes."""
    found = []
    while raw:
        (size,) = struct.unpack_from("<I", raw)
        found.append(raw[4 : 4 + size].decode())
        raw = raw[4 + size :]
    return found


def main(source: str, target: str) -> None:
    picture = Image.open(source).convert("RGB")
    drawing = ImageDraw.Draw(picture)
    for box, text, score in read(picture):
        print(f"{score:.2f} {text}")
        drawing.rectangle(box, outline="red", width=2)
        drawing.text((box[0], max(0.0, box[1] - 12)), text, fill="red")
    picture.save(target)


if __name__ == "__main__":
    main(*sys.argv[1:3])
