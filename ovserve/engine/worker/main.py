"""The engine process: `python -m ovserve.engine.worker.main FD [MARK]`, started by `process.py` and nobody else.

FD is one end of a socketpair. With the mark "prepare" the libraries are imported before anything is asked.
The first frame is Load, the answer Ready or LoadFailed; then the loop in `run()` until Stop, end of file, or
an engine that raised.

Why one thread: `step()` holds the GIL for the whole forward pass. An output thread would send each step's
text one step late (measured: 30 ms instead of 0.4), so frames are received and sent between steps.
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
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn, Protocol

import msgspec

from ovserve.engine.protocol.blobs import Segments
from ovserve.engine.protocol.frames import Channel, FrameError
from ovserve.engine.protocol.messages import (
    DUMP_SIGNAL,
    ENGINE_FAILED,
    PREPARE,
    Abort,
    Accepted,
    Add,
    ClearGrammars,
    Compile,
    Compiled,
    Detokenize,
    Detokenized,
    Failed,
    Load,
    LoadFailed,
    Ping,
    Pong,
    Ready,
    StepItem,
    Steps,
    Stop,
    ToEngine,
    Tokenize,
    Tokenized,
    Usage,
)
from ovserve.engine.protocol.specs import GrammarSpec, Spec, TextFacts, TokenizerSpec, resolve
from ovserve.engine.worker import calls, grammars, tokenizer
from ovserve.engine.worker.admission_queue import AdmissionQueue
from ovserve.engine.worker.batch_window import BatchWindow
from ovserve.engine.worker.usage import UsageClock
from ovserve.errors import FROM_KIND, LoadError, OvserveError
from ovserve.llm.grammar.constraint import structural_tag

EXIT_LOAD_FAILED = 1
EXIT_PROTOCOL = 65  # EX_DATAERR
EXIT_STEP_RAISED = 70  # EX_SOFTWARE
PR_SET_PDEATHSIG = 1

COMPILE_POLL = 0.002  # seconds between two looks at a compilation, when there is nothing else to do


class Engine(Protocol):
    """What the loop needs; the engines of `genai/` and `scripted.ScriptedEngine` have it."""

    facts: TextFacts

    @property
    def busy(self) -> bool: ...
    def live(self) -> list[int]: ...
    def encode_prompts(self, requests: list[Add]) -> Mapping[int, Any]: ...
    def can_schedule(self, encoded: Any) -> bool: ...
    def overtakes(self, encoded: Any) -> bool: ...
    def add(self, request: Add, encoded: Any = None) -> Accepted: ...
    def abort(self, request_id: int) -> None: ...
    def tokenize(self, texts: tuple[str, ...], add_special_tokens: bool) -> list[list[int]]: ...
    def detokenize(self, rows: tuple[tuple[int, ...], ...], skip_special_tokens: bool) -> list[str]: ...
    def step(self) -> None: ...
    def collect(self) -> list[StepItem | Failed]: ...
    def usage(self) -> Usage: ...

    # Grammars: compiled beside the steps; what has ended is asked for between two of them.
    @property
    def compiling(self) -> bool: ...
    def compile(self, id_: int, structural_tag: str, *, tried: bool = False) -> None: ...
    def compiled(self) -> list[Compiled | Failed]: ...
    def forget_grammars(self) -> None: ...


def run(channel: Channel[ToEngine], engine: Engine, batch_window: BatchWindow) -> int:
    channel.send(Ready.of(engine.facts))
    usage = UsageClock(engine.usage)
    queue = AdmissionQueue(engine)
    finished = 0  # requests, in the last step
    while True:
        idle = not engine.busy and not queue.waiting
        if idle and engine.compiling:
            messages = channel.receive_within(COMPILE_POLL)
        else:
            messages = channel.receive(block=idle)
        batch_window.begin(idle=idle, finished=finished)
        queue.begin()
        while True:
            heard = bool(messages)
            for message in queue.take(messages):
                if isinstance(message, Add | Tokenize | Detokenize):
                    answer = _answer(engine, message, queue)
                    channel.send(answer)
                    if isinstance(answer, Accepted) and isinstance(message, Add):
                        batch_window.admitted(answer.prompt_tokens, last=message.last)
                elif isinstance(message, Compile):
                    engine.compile(message.id, structural_tag(message.format), tried=message.tried)
                elif isinstance(message, ClearGrammars):
                    engine.forget_grammars()
                elif isinstance(message, Abort):
                    engine.abort(message.id)
                elif isinstance(message, Ping):
                    channel.send(Pong())
                elif isinstance(message, Stop):
                    return 0
                else:
                    raise FrameError("a second Load")
            pause = batch_window.pause(heard=heard, full=queue.full)
            if not pause:
                break
            messages = channel.receive_within(pause)
        finished = 0
        if engine.compiling:
            channel.send(*engine.compiled())
        if not engine.busy:
            if not idle:  # the last request was aborted
                channel.send(Steps([], usage.due(busy=False)))
            elif engine.compiling and (used := usage.heartbeat()):
                channel.send(Steps([], used))
            continue
        try:
            engine.step()
            gained = engine.collect()
        except Exception as error:  # noqa: BLE001  the worker loop border: whatever it was, this engine is done
            traceback.print_exc()
            reason = f"the engine failed in a step: {_last_line(error)}"
            channel.send(*(Failed(id_, ENGINE_FAILED, reason) for id_ in engine.live()))
            return EXIT_STEP_RAISED
        items = [word for word in gained if isinstance(word, StepItem)]
        failed = [word for word in gained if isinstance(word, Failed)]
        finished = sum(item.last for item in items)
        used = usage.due(engine.busy)
        channel.send(*([Steps(items, used)] if items or used else []), *failed)


def _answer(
    engine: Engine, asked: Add | Tokenize | Detokenize, queue: AdmissionQueue
) -> Accepted | Tokenized | Detokenized | Failed:
    try:
        if isinstance(asked, Add):
            return engine.add(asked, queue.encoded(asked))
        if isinstance(asked, Tokenize):
            return Tokenized(asked.id, engine.tokenize(asked.texts, asked.add_special_tokens))
        return Detokenized(asked.id, engine.detokenize(asked.ids, asked.skip_special_tokens))
    except OvserveError as error:
        kind = error.code if error.code in FROM_KIND else error.kind
        # The prompt is `messages` or `input` to most clients; who knows its name adds it.
        param = None if error.param == "prompt" else error.param
        return Failed(asked.id, kind or error.kind, error.message, param)


def _open(load: Load) -> tuple[Spec, Any]:
    """The spec and the engine that its backend makes of it. Raises LoadError."""
    try:
        spec = load.resolve()
        backend = resolve(type(spec).backend)
    except (ImportError, AttributeError, msgspec.MsgspecError) as error:
        raise LoadError(f"no engine for {load.spec_type}: {error}") from error
    return spec, backend(spec)


def _converse(channel: Channel[ToEngine], spec: Spec, engine: Any, segments: str) -> int:
    """Until `Stop` or the end of the engine; the exit code of the process."""
    if isinstance(spec, GrammarSpec):
        return grammars.run(channel, engine)
    if isinstance(spec, TokenizerSpec):
        return tokenizer.run(channel, engine)
    if spec.conversation == "calls":
        return calls.run(channel, engine, Segments(os.getppid(), segments))
    return run(channel, engine, BatchWindow(getattr(spec, "max_num_batched_tokens", 0)))


def _end_with_parent(sock: socket.socket) -> None:
    """End of file tells an engine between two steps; this also one that is deep in native code.

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


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def main(argv: list[str]) -> int:
    # Ctrl-C in a terminal and a service manager's SIGTERM reach the whole group; the server drains its
    # requests first and then says Stop, or is gone, which closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.register(DUMP_SIGNAL, all_threads=True)  # works with the global lock held by a step
    channel: Channel[ToEngine]
    try:
        sock = socket.socket(fileno=int(argv[1]))
        _end_with_parent(sock)
        channel = Channel(sock, ToEngine)
        if PREPARE in argv[2:]:
            import ovserve.engine.backends.genai  # noqa: F401  for `_load`
        first, *_ = channel.receive(block=True)
        if not isinstance(first, Load):
            raise FrameError("the first frame is not Load")
        try:
            spec, engine = _open(first)
        except LoadError as error:
            reason = f"{error.file}: {error.reason}" if error.file else error.reason
            channel.send(LoadFailed(reason, error.field))
            return EXIT_LOAD_FAILED
        gc.freeze()  # what loading made stays for good: keep it out of every later collection
        _leave(
            _converse(channel, spec, engine, first.segments)
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


if __name__ == "__main__":
    _leave(main(sys.argv))
