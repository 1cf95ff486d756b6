"""The loop of a child process that answers untrusted requests, one at a time, until end of file.

`worker.py` in `templates`, `images` and `bodies` are such processes. Each request has a time
limit, after which the kernel ends the process (an unhandled alarm), even when the server is gone. The process
has a limited address space.
"""

from __future__ import annotations

import resource
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ovserve.engine.protocol.frames import Channel, FrameError

EXIT_PROTOCOL = 65  # EX_DATAERR


def answer_all(argv: list[str], questions: Any, answer: Callable[[Any], Sequence[Any]], name: str) -> int:
    """Run the loop and return the exit code. `argv`: the program, FD, SECONDS, BYTES.

    `questions` is their message type; `answer` returns the messages that answer one.
    """
    descriptor, seconds, memory = int(argv[1]), float(argv[2]), int(argv[3])
    # Ctrl-C and a service manager's SIGTERM reach the whole group; the server ends this process by closing
    # the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    channel: Channel[Any] = Channel(socket.socket(fileno=descriptor), questions)
    try:
        while True:
            for question in channel.receive(block=True):
                signal.setitimer(signal.ITIMER_REAL, seconds)
                done = answer(question)
                signal.setitimer(signal.ITIMER_REAL, 0)
                for message in done:
                    channel.send(message)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0
    except FrameError as error:
        print(f"{name}: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_PROTOCOL
