"""The engine process: `python -m ovserve.engine.worker.main FD [MARK]`.

FD is one end of a socketpair. With the mark "prepare" the libraries are imported before the first message.
The first frame is Load, the answer Ready or LoadFailed. Then the conversation of the spec's kind runs until
Stop, end of file, or an engine that raised.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import signal
import socket
import struct
import sys
from typing import Any, NoReturn

from ovserve.engine.protocol.blobs import Segments
from ovserve.engine.protocol.frames import Channel, FrameError
from ovserve.engine.protocol.launch import DUMP_SIGNAL, EXIT_LOAD_FAILED, EXIT_PROTOCOL, PREPARE
from ovserve.engine.protocol.messages import Load, ToEngine
from ovserve.engine.protocol.specs import HostSpec, Spec
from ovserve.engine.worker import calls, host, steps
from ovserve.engine.worker.calls import BatchWindow
from ovserve.engine.worker.host import libc, load_failed, open_backend
from ovserve.engine.worker.mapped_files import MappedFiles
from ovserve.errors import LoadError

PR_SET_PDEATHSIG = 1


def _converse(channel: Channel[ToEngine], spec: Spec, engine: Any, segments: str, files: MappedFiles) -> int:
    """Run until `Stop` or the end of the engine; return the exit code of the process."""
    if spec.conversation == "own":
        code: int = engine(channel)
        return code
    if isinstance(spec, HostSpec):
        return host.run(channel, Segments(os.getppid(), segments), files)
    if spec.conversation == "calls":
        return calls.run(channel, engine, Segments(os.getppid(), segments))
    return steps.run(channel, engine, BatchWindow(getattr(spec, "max_num_batched_tokens", 0)))


def _end_with_parent(sock: socket.socket) -> None:
    """End of file ends an engine between two steps; this also ends one that is deep in native code.

    The signal is sent when the *thread* that started us ends, which is the server's event loop thread. A
    parent that died before the call is recognised by comparing with the maker of the socketpair; its pid
    cannot be compared with 1, which is an honest parent in a container.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    if os.getppid() != struct.unpack("3i", credentials)[0]:
        raise EOFError("the parent process is gone")


def main(argv: list[str]) -> int:
    # Ctrl-C, the end of a terminal and a service manager's SIGTERM reach the whole group; the server drains
    # its requests first and then says Stop, or is gone, which closes the socket.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.register(DUMP_SIGNAL, all_threads=True)  # works with the global lock held by a step
    files = MappedFiles()
    channel: Channel[ToEngine]
    try:
        sock = socket.socket(fileno=int(argv[1]))
        _end_with_parent(sock)
        channel = Channel(sock, ToEngine)
        if PREPARE in argv[2:]:
            import ovserve.kinds.text.worker.genai  # noqa: F401  for `_load`
        first, *_ = channel.receive(block=True)
        if not isinstance(first, Load):
            raise FrameError("the first frame is not Load")
        try:
            spec, engine = open_backend(first, files)
        except LoadError as error:
            channel.send(load_failed(error))
            return EXIT_LOAD_FAILED
        libc("malloc_trim", 0)  # give back what it keeps of the memory that loading has freed
        gc.freeze()  # what loading made stays for good: keep it out of every later collection
        _leave(
            _converse(channel, spec, engine, first.segments, files)
        )  # with the engine alive: its destructor complains of requests dropped
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0
    except FrameError as error:
        print(f"protocol error: {error}", file=sys.stderr)  # noqa: T201  stderr is this process's log
        return EXIT_PROTOCOL


def _leave(code: int) -> NoReturn:
    # Not sys.exit(): native destructors may take long or crash, and everything worth saying is sent.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def start(argv: list[str]) -> NoReturn:
    _leave(main(argv))


if __name__ == "__main__":
    start(sys.argv)
