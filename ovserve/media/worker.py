"""A process that decodes images: `python -m ovserve.media.worker FD SECONDS BYTES`, started by `decoders.py`.

One image at a time, until end of file. Each has SECONDS of time, after which the kernel ends the process, and
BYTES of address space. It is the polite neighbour of the engine: whoever infers goes first.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import warnings

from ovserve.engine.frames import Channel, FrameError
from ovserve.media.messages import Answer, Decode, Decoded, Undecodable
from ovserve.media.picture import PictureError, decode, unpacked

NICENESS = 10


def answer(question: Decode) -> Answer:
    try:
        data = unpacked(question.data) if question.base64 else question.data
        return Decoded(decode(data, question.detail))
    except PictureError as error:
        return Undecodable(str(error))
    except MemoryError:
        return Undecodable("it takes too much memory to decode")


def main(argv: list[str]) -> int:
    descriptor, seconds, memory = int(argv[1]), float(argv[2]), int(argv[3])
    # Ctrl-C and a service manager's SIGTERM reach the whole group; the server ends us by closing the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    warnings.simplefilter("ignore")  # of what is odd in a file; what is wrong is raised
    channel: Channel[Decode] = Channel(socket.socket(fileno=descriptor), Decode)
    try:
        while True:
            for question in channel.receive(block=True):
                signal.setitimer(signal.ITIMER_REAL, seconds)
                done = answer(question)
                signal.setitimer(signal.ITIMER_REAL, 0)
                channel.send(done)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0
    except FrameError as error:
        print(f"image process: {error}", file=sys.stderr)  # noqa: T201
        return 65  # EX_DATAERR


if __name__ == "__main__":
    sys.exit(main(sys.argv))
