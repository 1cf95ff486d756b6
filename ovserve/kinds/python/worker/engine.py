"""The backend of Python nodes: all handlers of one graph.

A handler is an instance of its `OvmsPythonModel`.

At its deadline a call ends for its client, and an exception is raised in its thread, which ends code that
runs in Python. A thread that stays, in native code or asleep, keeps its place, so after a while the process
ends itself and the server starts another.

Each line that handlers print begins with the names of graph and node. The process's output is a pipe to the
server's log. Lines of threads that a handler starts itself, and of native code, have no node's name.

The file of a handler is a module of its own, with its directory first on the path. Bytecode next to a file is
never used: an edit within the same second and of the same size would be missed.
"""

from __future__ import annotations

import ctypes
import faulthandler
import io
import math
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from ovserve.engine.protocol.call_backend import Invocation, Result
from ovserve.errors import DeadlineExceeded, Internal, InvalidArgument, LoadError, NotFound, OvserveError
from ovserve.kinds.python.spec import (
    EXECUTE,
    FAILED,
    MODEL_CLASS,
    ExecuteArguments,
    Given,
    PythonFacts,
    PythonNode,
    PythonSpec,
    RequestValue,
)
from ovserve.kinds.python.worker import pyovms
from ovserve.kinds.python.worker.pyovms import Answers, HttpRequest, WrongAnswer


class Modules:
    """The modules of one process, by the path of the file."""

    def __init__(self) -> None:
        self._known: dict[Path, ModuleType] = {}
        self._directories: list[Path] = []

    def load(self, path: Path) -> ModuleType:
        """Import a file, once. Raises what its code raises."""
        if path not in self._known:
            self._enter(path.parent)
            before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
            try:
                self._known[path] = _imported(path)
            finally:
                sys.dont_write_bytecode = before
        return self._known[path]

    def _enter(self, directory: Path) -> None:
        """Put a directory first. A module of the same name from another one is imported anew from here."""
        if directory in self._directories:
            sys.path.remove(str(directory))
        sys.path.insert(0, str(directory))
        for name in [*_tops(directory)]:
            module = sys.modules.get(name)
            if (
                module is not None
                and _directory(module) in self._directories
                and _directory(module) != directory
            ):
                text = f"module {name!r} exists in {_directory(module)} and in {directory}: each has its own"
                sys.stderr.write(f"{text}\n")
                for each in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
                    del sys.modules[each]
        self._directories.append(directory)


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)


def _imported(path: Path) -> ModuleType:
    is_taken = path.stem in sys.modules or path.stem in sys.stdlib_module_names
    name = f"{path.stem}_of_{path.parent.name}" if is_taken else path.stem
    while name in sys.modules:
        name += "_"
    spec = ModuleSpec(name, _Loader(name, str(path)), origin=str(path))
    spec.has_location = True
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)  # type: ignore[union-attr]  # it has the one given above
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _tops(directory: Path) -> Iterator[str]:
    """Yield names of modules and packages in a directory."""
    for path in directory.iterdir():
        if path.suffix == ".py":
            yield path.stem
        elif (path / "__init__.py").is_file():
            yield path.name


def _directory(module: ModuleType) -> Path:
    """Return the directory that a top-level module or package was imported from."""
    path = Path(getattr(module, "__file__", None) or "/")
    return path.parent.parent if path.name == "__init__.py" else path.parent


_node: ContextVar[str] = ContextVar("node", default="")
MAX_LINE_LENGTH = 16 << 10  # characters of a line that is not ended


class NodeOutput(io.TextIOBase):
    """Replaces `sys.stdout` and `sys.stderr`. A line is written when it is complete, in one piece."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, graph: str, inner: Any) -> None:
        self.buffer = inner.buffer
        self._graph = graph
        self._descriptor = inner.fileno()
        self._parts = threading.local()  # a thread's line that is not ended

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"expected str, got {type(text).__name__}")
        *lines, rest = (getattr(self._parts, "text", "") + text).split("\n")
        if len(rest) > MAX_LINE_LENGTH:
            lines, rest = [*lines, rest], ""
        self._parts.text = rest
        self._emit(lines)
        return len(text)

    def end_line(self) -> None:
        """Write this thread's line, although it is not ended."""
        if rest := getattr(self._parts, "text", ""):
            self._parts.text = ""
            self._emit([rest])

    def _emit(self, lines: list[str]) -> None:
        node = _node.get()
        mark = f"{self._graph}/{node}" if node else self._graph
        # Of a progress bar only its last state counts.
        texts = [f"{mark}: {line.rstrip(chr(13)).rpartition(chr(13))[2]}\n" for line in lines]
        data = "".join(texts).encode(self.encoding, self.errors)
        while data:
            data = data[os.write(self._descriptor, data) :]

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._descriptor)


def mark_output(graph: str) -> None:
    sys.stdout = NodeOutput(graph, sys.__stdout__)
    sys.stderr = NodeOutput(graph, sys.__stderr__)


@contextmanager
def printing_as(node: str) -> Iterator[None]:
    """Inside, this thread's lines have the node's name."""
    token = _node.set(node)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, NodeOutput):
                stream.end_line()
        _node.reset(token)


GRACE_SECONDS = 5.0  # seconds between the exception and the end of the process
EXIT_STUCK = 75  # EX_TEMPFAIL


class CallTimeout(BaseException):
    """Raised in the thread of a handler. It is not an Exception, so that handlers do not catch it."""


@dataclass(eq=False)
class _Running:
    node: str
    thread: int
    seconds: float
    at: float
    expire: Callable[[], None]
    raised: bool = False


class Deadlines:
    def __init__(self, grace: float = GRACE_SECONDS) -> None:
        self._grace = grace
        self._running: set[_Running] = set()
        self._changed = threading.Condition()
        self._watcher: threading.Thread | None = None
        self._next = math.inf  # when the watcher looks again; a thread that is woken takes the others' time

    @contextmanager
    def within(self, seconds: float, node: str, expire: Callable[[], None]) -> Iterator[None]:
        """Raise CallTimeout inside after `seconds`, after a call of `expire` on another thread; 0: never."""
        if not seconds:
            yield
            return
        call = _Running(node, threading.get_ident(), seconds, time.monotonic() + seconds, expire)
        with self._changed:
            self._running.add(call)
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="deadlines", daemon=True)
                self._watcher.start()
            if call.at < self._next:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._running.discard(call)
                if call.raised:
                    _raise_in(call.thread, None)  # it may not have arrived yet, and must not arrive later

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for call in [c for c in self._running if c.at <= now]:
                    if call.raised:
                        _end(call, self._grace)
                    call.raised, call.at = True, now + self._grace
                    call.expire()
                    _raise_in(call.thread, CallTimeout)
                self._next = min((c.at for c in self._running), default=math.inf)
                self._changed.wait(None if self._next == math.inf else max(0.0, self._next - now))


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise an exception in a thread, at its next instruction of Python; None takes it back."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if error is None else ctypes.py_object(error)
    )


def _end(call: _Running, grace: float) -> None:
    text = (
        f"node {call.node!r}: a call did not end {grace:g} s after its timeout of {call.seconds:g} s; ending"
    )
    os.write(2, f"{text} the process\n".encode())
    faulthandler.dump_traceback(2, all_threads=True)
    os._exit(EXIT_STUCK)


T = TypeVar("T")
END = object()  # of a generator
MAX_MESSAGE_CHARACTERS = 500  # characters of an exception's text in an error


def last_line(error: BaseException) -> str:
    """Return the kind of an exception and the first line of its text."""
    text = str(error.msg if isinstance(error, SyntaxError) else error).strip().partition("\n")[0]
    if isinstance(error, SyntaxError) and error.lineno:
        text += f" ({Path(error.filename or '').name}:{error.lineno})"
    name = type(error).__name__
    return f"{name}: {text[:MAX_MESSAGE_CHARACTERS]}" if text else name


def log_exception(error: BaseException, request: str = "") -> None:
    if request:
        sys.stderr.write(f"request {request}:\n")
    traceback.print_exception(error, file=sys.stderr)


class Handler:
    """Raises LoadError naming the node."""

    def __init__(self, node: PythonNode, modules: Modules, deadlines: Deadlines) -> None:
        self.node = node
        self._deadlines = deadlines
        with printing_as(node.name):
            self._model = self._load(modules)

    def _load(self, modules: Modules) -> Any:
        path = Path(self.node.handler)
        try:
            module = modules.load(path)
        except BaseException as error:
            log_exception(error)
            raise self._error(f"{path.name} cannot be imported: {last_line(error)}") from error
        model_class = getattr(module, MODEL_CLASS, None)
        if not isinstance(model_class, type):
            raise self._error(f"{path.name} defines no class {MODEL_CLASS}")
        if not callable(getattr(model_class, "execute", None)):
            raise self._error(f"{MODEL_CLASS} of {path.name} has no method execute")
        about = {
            "input_names": [*self.node.inputs, *self.node.loopback[:1]],
            "output_names": [*self.node.outputs, *self.node.loopback[1:]],
            "node_name": self.node.name,
            "base_path": str(path.parent),
        }
        try:
            model = model_class()
            if callable(initialize := getattr(model, "initialize", None)):
                initialize(about)
        except BaseException as error:
            log_exception(error)
            raise self._error(f"initialize of {path.name} failed: {last_line(error)}") from error
        return model

    def _error(self, reason: str) -> LoadError:
        return LoadError(reason, node=self.node.name, field="handler_path")

    def finalize(self) -> None:
        """Call the handler's; its exception is logged."""
        with printing_as(self.node.name):
            try:
                if callable(finalize := getattr(self._model, "finalize", None)):
                    finalize()
            except BaseException as error:  # noqa: BLE001  the graph is gone all the same
                sys.stderr.write(f"finalize failed: {last_line(error)}\n")
                log_exception(error)

    def run(self, invocation: Invocation, arguments: ExecuteArguments) -> Iterator[Result]:
        """Raises InvalidArgument with OVMS's text and the exception of the handler."""
        inputs = [
            _received(value, blob) for value, blob in zip(arguments.values, invocation.blobs, strict=True)
        ]
        answer = self._call(invocation, arguments.request, partial(self._model.execute, inputs))
        if isinstance(answer, Iterator):
            yield from self._generated(invocation, arguments.request, answer)
        elif isinstance(answer, list) or self.node.response:
            yield self._result(Answers(self.node), answer, generated=False)
        else:
            raise self._wrong(f"expected a list or a generator, got {type(answer).__name__}")

    def _generated(self, invocation: Invocation, request: str, items: Iterator[Any]) -> Iterator[Result]:
        try:
            if not self.node.loopback:
                raise self._wrong("a generator needs a LOOPBACK input and output on the node")
            answers = Answers(self.node)
            item = first = self._call(invocation, request, partial(next, items, END))
            while item is not END:
                yield self._result(answers, item, generated=True)
                item = self._call(invocation, request, partial(next, items, END))
            if first is END:
                raise self._wrong("the generator ended without an item")
        finally:
            if callable(close := getattr(items, "close", None)):
                self._call(invocation, request, close)

    def _call(self, invocation: Invocation, request: str, function: Callable[[], T]) -> T:
        """Call the user's code: within the node's time, its output marked, its exception logged."""
        node, seconds = self.node, self.node.call_timeout
        late = DeadlineExceeded(f"node {node.name!r}: the handler did not answer within {seconds:g} s")
        with printing_as(node.name):
            try:
                with self._deadlines.within(seconds, node.name, lambda: invocation.fail(late)):
                    return function()
            except CallTimeout as error:
                log_exception(error, request)
                raise late from None
            except BaseException as error:
                log_exception(error, request)
                raise self._failed(last_line(error)) from error

    def _result(self, answers: Answers, answer: Any, *, generated: bool) -> Result:
        try:
            return answers.result(answer, generated=generated)
        except WrongAnswer as error:
            raise self._wrong(str(error)) from None
        except (TypeError, ValueError, RecursionError, BufferError) as error:  # a value that has no bytes
            raise self._wrong(f"{type(error).__name__}: {error}") from error

    def _failed(self, reason: str) -> OvserveError:
        """Return the error of a call: InvalidArgument as in OVMS, and Internal over HTTP."""
        return (Internal if self.node.http else InvalidArgument)(f"{FAILED}: {reason}")

    def _wrong(self, reason: str) -> OvserveError:
        """Return the error of an answer that is not valid, and log it."""
        with printing_as(self.node.name):
            sys.stderr.write(f"execute returned a wrong value: {reason}\n")
        return self._failed(reason)


def _received(value: Given, blob: memoryview) -> pyovms.Tensor | HttpRequest:
    if isinstance(value, RequestValue):
        return HttpRequest(value.name, value.method, value.path, value.query, value.headers, blob.tobytes())
    return pyovms.tensor_of(value.name, value.datatype, value.shape, blob)


class PythonEngine:
    """A `CallBackend` with the method `execute`. Handlers are initialised in the order of the nodes.

    Raises LoadError naming the node; the handlers before it are finalised then.
    """

    def __init__(self, spec: PythonSpec) -> None:
        began = time.monotonic()
        mark_output(spec.servable)
        # Ignored by the worker, and a program that a handler starts would inherit that.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        sys.modules["pyovms"] = pyovms
        modules, deadlines = Modules(), Deadlines()
        self._handlers: dict[str, Handler] = {}
        try:
            for node in spec.nodes:
                self._handlers[node.name] = Handler(node, modules, deadlines)
        except BaseException:
            self.close()
            raise
        version = platform.python_version()
        self.facts = PythonFacts(
            engine=f"python {version}",
            load_seconds=round(time.monotonic() - began, 3),
            max_calls=spec.threads,
            python=version,
            executable=sys.executable,
        )

    def call(self, invocation: Invocation) -> Iterator[Result]:
        if invocation.method != EXECUTE:
            raise NotFound(f"a Python node has no method {invocation.method!r}")
        arguments = invocation.arguments(ExecuteArguments)
        yield from self._handlers[arguments.node].run(invocation, arguments)

    def close(self) -> None:
        """Finalise the handlers, the last one first."""
        while self._handlers:
            self._handlers.popitem()[1].finalize()
