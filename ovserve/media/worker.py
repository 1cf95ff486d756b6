"""A process that decodes images: `python -m ovserve.media.worker FD SECONDS BYTES`, started by `decoders.py`.

One image at a time, within SECONDS and BYTES, as `engine/bounded.py` keeps them. It is the polite neighbour
of the engine: whoever infers goes first.
"""

from __future__ import annotations

import os
import sys
import warnings

from ovserve.engine.bounded import answer_all
from ovserve.media.messages import Answer, Decode, Decoded, Undecodable
from ovserve.media.picture import PictureError, decode, unpacked

NICENESS = 10


def answer(question: Decode) -> Answer:
    try:
        data = unpacked(question.data) if question.base64 else question.data
        return Decoded(decode(data, question.detail, question.max_pixels))
    except PictureError as error:
        return Undecodable(str(error))
    except MemoryError:
        return Undecodable("it takes too much memory to decode")


def main(argv: list[str]) -> int:
    os.nice(NICENESS)
    warnings.simplefilter("ignore")  # of what is odd in a file; what is wrong is raised
    return answer_all(argv, Decode, answer, "image process")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
