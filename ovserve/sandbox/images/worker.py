"""A process that decodes images and files: `python -m ovserve.sandbox.images.worker FD SECONDS BYTES`.

It handles one request at a time, within SECONDS and BYTES (`sandbox/base.py`). Its priority is below the
engine's.
"""

from __future__ import annotations

import os
import sys
import warnings

from ovserve.sandbox.base import answer_all
from ovserve.sandbox.images.document import DocumentError, text_of
from ovserve.sandbox.images.messages import (
    DecodedImage,
    DecodedPixels,
    DecodePixels,
    DecodeRaster,
    DecodeResult,
    Question,
    Read,
    Text,
    Undecodable,
)
from ovserve.sandbox.images.picture import PictureError, decode, decode_pixels, decode_raster, unpacked

NICENESS = 10


def answer(question: Question) -> DecodeResult:
    try:
        if isinstance(question, Read):
            return Text(text_of(unpacked(question.data)))
        if isinstance(question, DecodePixels):
            return DecodedPixels(decode_pixels(question.data, question.form, question.max_pixels))
        data = unpacked(question.data) if question.base64 else question.data
        if isinstance(question, DecodeRaster):
            return DecodedImage(decode_raster(data, question.form, question.max_pixels))
        return DecodedImage(decode(data, question.detail, question.max_pixels))
    except (PictureError, DocumentError) as error:
        return Undecodable(str(error))
    except MemoryError:
        return Undecodable("decoding it needs too much memory")


def main(argv: list[str]) -> int:
    os.nice(NICENESS)
    warnings.simplefilter("ignore")  # oddities of a file; real errors are raised
    return answer_all(argv, Question, lambda question: [answer(question)], "image process")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
