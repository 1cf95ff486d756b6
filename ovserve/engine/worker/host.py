"""The loop of a process that holds many small models: each is loaded, called and unloaded by its number.

A load runs on a thread of its own, so calls of other models go on, as far as the library releases the
interpreter lock. The calls of all models share one pool of threads. Each model takes `facts.max_calls` of
them at most, so the pool has as many threads as ever worked at the same time, and not as many as there are
models. Whatever loading raises is a failure of that model only.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from ovserve.engine.model.files import broken_file
from ovserve.engine.protocol.blobs import Segments
from ovserve.engine.protocol.call_backend import CallBackend
from ovserve.engine.protocol.frames import Channel, FrameError
from ovserve.engine.protocol.messages import (
    Call,
    Cancel,
    Demand,
    Failed,
    FromModel,
    Load,
    LoadFailed,
    Ping,
    Pong,
    Ready,
    Stop,
    ToEngine,
    ToModel,
    Unloaded,
)
from ovserve.engine.protocol.specs import Facts, HostSpec, Spec, resolve
from ovserve.engine.worker.calls import Calls, Threads
from ovserve.engine.worker.mapped_files import MappedFiles
from ovserve.errors import InvalidArgument, LoadError


def open_backend(load: Load, files: MappedFiles | None = None, *, shared: bool = False) -> tuple[Spec, Any]:
    """Return the spec, and what its backend makes of it. Raises LoadError, or what the backend raises.

    `files` are to be held against changes. `shared`: other models are in this process.
    """
    try:
        spec = load.resolve()
        backend = resolve(type(spec).backend)
    except (ImportError, AttributeError, msgspec.MsgspecError) as error:
        raise LoadError(f"no engine for {load.spec_type}: {error}") from error
    try:
        if files is None:
            return spec, backend(spec)
        return spec, files.guard(spec, lambda: backend(spec), shared=shared)
    except (
        InvalidArgument,
        MemoryError,
    ) as error:  # of what it tries out, such as a tokenizer that is absent
        raise LoadError(str(error) or "it needs more memory than there is") from error
    except LoadError as error:
        fault = broken_file(spec.model_paths)
        if not fault or fault in str(error):
            raise
        reason = f"{fault} ({error.reason})"
        raise LoadError(reason, node=error.node, field=error.field, transient=error.transient) from error


def load_failed(error: LoadError) -> LoadFailed:
    reason = f"{error.file}: {error.reason}" if error.file else error.reason
    return LoadFailed(reason, error.field, error.node, error.transient)


M_ARENA_MAX = -8  # of malloc.h
MALLOC_ARENAS = 2  # of malloc; with its default, 8 a core, 100 loads on as many threads take 80 MB more
OPEN_SECONDS = 30.0  # that the first load of a kind may hold up those of others
MAX_THREADS = 1024  # of all calls; they are started when they are needed
COLLECT_SECONDS = 1.0  # after an unload; it holds up all calls for some milliseconds


class Host:
    """The models of this process. Only `handle` is called by the main thread; the rest runs on others."""

    def __init__(
        self, channel: Channel[ToEngine], segments: Segments, files: MappedFiles | None = None
    ) -> None:
        self._channel = channel
        self._files = files
        self._segments = segments
        self._sending = threading.Lock()
        self._pool = Threads(MAX_THREADS)
        self._models: dict[int, Calls | None] = {}  # None: it is loading
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._opened: set[str] = set()  # kinds
        self._collecting = False

    def send(self, *messages: msgspec.Struct) -> None:
        with self._sending:
            self._channel.send(*messages)

    def handle(self, number: int, message: Load | Call | Demand | Cancel | Ping | Stop) -> None:
        if isinstance(message, Load):
            self._models[number] = None
            self._on_thread(f"load {number}", self._load, number, message)
        elif isinstance(message, Stop):
            with self._lock:
                calls = self._models.pop(number, None)
            if calls is not None:  # else `_load` finds that it is not wanted any more
                calls.began()
                self._on_thread(f"unload {number}", calls.close, lambda: self._unloaded(number))
        elif isinstance(message, Ping):
            self.send(FromModel(number, Pong()))
        else:
            self._on_call(number, message)

    def _on_call(self, number: int, message: Call | Demand | Cancel) -> None:
        calls = self._models.get(number)
        if isinstance(message, Demand | Cancel):
            if calls is not None:
                (calls.cancel if isinstance(message, Cancel) else calls.demand)(message.id)
        elif calls is not None:
            calls.start(message)
        else:
            self._segments.free(message.blobs)
            self.send(FromModel(number, Failed(message.id, "unavailable", "the model is not loaded")))

    def began(self, messages: Sequence[ToEngine]) -> None:
        """Run the calls of these messages that their backends have begun."""
        for number in {message.model for message in messages if isinstance(message, ToModel)}:
            if (calls := self._models.get(number)) is not None:
                calls.began()

    def _on_thread(self, name: str, target: Callable[..., None], *args: object) -> None:
        try:
            threading.Thread(target=target, args=args, name=name, daemon=True).start()
        except RuntimeError:  # no more can be started
            self._pool.submit(target, *args)

    def _load(self, number: int, load: Load) -> None:
        try:
            spec, backend = self._open(load)
        except LoadError as error:
            self._load_failed(number, load_failed(error))
        except BaseException as error:  # noqa: BLE001  the worker loop border: the other models go on
            traceback.print_exc()
            self._load_failed(number, LoadFailed(f"{type(error).__name__}: {error}"))
        else:
            self._loaded(number, spec, backend)

    def _open(self, load: Load) -> tuple[Spec, CallBackend]:
        """Open a backend; the first of its kind alone. Threads that import modules which import each other
        can see one that is half made, and two that first use OpenVINO at once can wait for each other."""
        if load.spec_type in self._opened:
            return open_backend(load, self._files, shared=True)
        held = self._opening.acquire(timeout=OPEN_SECONDS)
        try:
            opened = open_backend(load, self._files, shared=True)
            self._opened.add(load.spec_type)
            return opened
        finally:
            if held:
                self._opening.release()

    def _load_failed(self, number: int, message: LoadFailed) -> None:
        with self._lock:
            self._models.pop(number, None)
        self.send(FromModel(number, message))

    def _loaded(self, number: int, spec: Spec, backend: CallBackend) -> None:
        calls = Calls(
            lambda *messages: self.send(*(FromModel(number, message) for message in messages)),
            backend,
            self._segments,
            self._pool,
            f"{spec.kind} {spec.model_path}",
        )
        with self._lock:
            is_current = number in self._models
            if is_current:
                self._models[number] = calls
        if is_current:
            self.send(FromModel(number, Ready.of(backend.facts)))
        else:
            calls.close(lambda: self._unloaded(number))

    def _unloaded(self, number: int) -> None:
        self.send(FromModel(number, Unloaded()))
        with self._lock:
            collecting, self._collecting = self._collecting, True
        if not collecting:
            self._on_thread("collect", self._collect)

    def _collect(self) -> None:
        """Free what only cycles hold, and give free memory back to the system, once for a row of unloads."""
        time.sleep(COLLECT_SECONDS)
        with self._lock:
            self._collecting = False
        gc.collect()
        libc("malloc_trim", 0)


def load(spec: HostSpec) -> None:
    """Open nothing: its models come later."""


def libc(function: str, *arguments: int) -> None:
    """Call a function that only glibc has."""
    if sys.platform == "linux":
        with suppress(AttributeError):
            getattr(ctypes.CDLL(None), function)(*arguments)


def run(channel: Channel[ToEngine], segments: Segments, files: MappedFiles | None = None) -> int:
    libc("mallopt", M_ARENA_MAX, MALLOC_ARENAS)
    host = Host(channel, segments, files)
    host.send(Ready.of(Facts()))
    while True:
        messages = channel.receive(block=True)
        for message in messages:
            if isinstance(message, ToModel):
                host.handle(message.model, message.message)
            elif isinstance(message, Ping):
                host.send(Pong())
            elif isinstance(message, Stop):
                return 0
            else:
                raise FrameError(f"{type(message).__name__} is not a message for a process of many models")
        host.began(messages)
