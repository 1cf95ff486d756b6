"""A sandbox process: `python -m ovserve.sandbox.worker FD SECONDS BYTES INITIALIZER`.

It answers untrusted calls, one at a time, until end of file. Each has a time limit, after which the kernel
ends the process (an unhandled alarm), even when the server is gone. The process has a limited address space.

The server names the functions; nothing that a client sends does. INITIALIZER is called first, without limits:
its module imports what takes long, so that no call pays for it.
"""

from __future__ import annotations

import pickle
import resource
import signal
import socket
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, cast

import msgspec

from ovserve.engine.protocol.frames import Channel, FrameError, frame_parts
from ovserve.errors import OvserveError, PayloadTooLarge
from ovserve.sandbox.messages import Call, Failed, OutOfMemory, Raised, Returned, Text, Undecodable

EXIT_PROTOCOL = 65  # EX_DATAERR
# Characters of a part of a text. The server reads 31 MB of emoji in 60 ms, and handles other events between
# parts.
MAX_PART = 1 << 20

_encoder = msgspec.msgpack.Encoder()


@cache
def find(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    return cast(Callable[..., Any], getattr(import_module(module), function))


def frames(call: Call) -> list[tuple[bytes, ...]]:
    """Return the frames that answer a call, each in parts."""
    try:
        arguments = list(pickle.loads(call.arguments))
        if call.place >= 0:
            arguments.insert(call.place, call.body)
        value = find(call.function)(*arguments)
        if type(value) is not str:
            data = _encoder.encode(value) if call.typed else pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
            return [frame_parts(Returned(), data)]
        if len(value) <= MAX_PART:
            return [frame_parts(Text(value))]
        places = range(0, len(value), MAX_PART)
        return [frame_parts(Text(value[at : at + MAX_PART], at == places[-1])) for at in places]
    except (OvserveError, Undecodable) as error:
        return [frame_parts(Raised.of(error))]
    except FrameError as error:
        return [frame_parts(Raised.of(PayloadTooLarge(f"what it becomes cannot be passed on: {error}")))]
    except MemoryError:
        return [frame_parts(Raised.of(OutOfMemory("it needs too much memory")))]
    except Exception:  # noqa: BLE001 - a border between processes: the server logs it
        import traceback  # rarely needed

        return [frame_parts(Failed(traceback.format_exc()))]


def main(argv: list[str]) -> int:
    descriptor, seconds, memory = int(argv[1]), float(argv[2]), int(argv[3])
    find(argv[4])()
    # Ctrl-C, the end of a terminal and a service manager's SIGTERM reach the whole group; the server ends
    # this process by closing the socket.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sock = socket.socket(fileno=descriptor)
    channel: Channel[Call] = Channel(sock, Call)
    try:
        while True:
            for call in channel.receive(block=True):
                signal.setitimer(signal.ITIMER_REAL, seconds)
                answer = frames(call)
                signal.setitimer(signal.ITIMER_REAL, 0)
                for frame in answer:
                    for part in frame:
                        sock.sendall(part)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0
    except FrameError as error:
        print(f"{argv[4]}: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_PROTOCOL


if __name__ == "__main__":
    sys.exit(main(sys.argv))
