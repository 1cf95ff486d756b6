"""A process that decodes audio: `python -m ovserve.sandbox.audio.worker FD SECONDS BYTES`.

It handles one request at a time, within SECONDS and BYTES (`sandbox/base.py`). Its priority is below the
engine's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ovserve.sandbox.audio.messages import AudioResult, DecodeAudio, DecodedAudio, UndecodableAudio
from ovserve.sandbox.audio.sound import Samples, SoundError
from ovserve.sandbox.base import answer_all

NICENESS = 10


def decode(question: DecodeAudio) -> AudioResult:
    from ovserve.sandbox.audio.container import decode_container
    from ovserve.sandbox.audio.wav import OtherCodec, decode_wav, is_wav

    source = Path(question.source)
    try:
        with source.open("rb") as file:
            head = file.read(12)
        if not head:
            return UndecodableAudio("it is empty")
        with open(question.target, "wb") as target:
            samples = Samples(target, question.max_seconds)
            if not is_wav(head):
                decode_container(source, samples)
                return DecodedAudio(samples.count)
            try:
                decode_wav(source, samples)
            except OtherCodec:
                decode_container(source, samples)
            return DecodedAudio(samples.count)
    except SoundError as error:
        return UndecodableAudio(str(error))
    except MemoryError:
        return UndecodableAudio("decoding it needs too much memory")
    except OSError as error:
        return UndecodableAudio(f"it cannot be stored: {error.strerror}")


def main(argv: list[str]) -> int:
    os.nice(NICENESS)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # its threads reserve more address space than there is
    return answer_all(argv, DecodeAudio, lambda question: [decode(question)], "audio process")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
