"""One node's handler: an instance of its `OvmsPythonModel`, how it is called, and what it may answer."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ovserve.engine.backends.calls import Invocation, Result
from ovserve.engine.backends.python import pyovms
from ovserve.engine.backends.python.answers import Answers, WrongAnswer, checked
from ovserve.engine.backends.python.deadlines import CallTimeout, Deadlines
from ovserve.engine.backends.python.http import HttpRequest
from ovserve.engine.backends.python.modules import Modules
from ovserve.engine.backends.python.output import printing_as
from ovserve.engine.protocol.python_nodes import (
    FAILED,
    MODEL_CLASS,
    ExecuteArguments,
    Given,
    PythonNode,
    RequestValue,
)
from ovserve.errors import DeadlineExceeded, Internal, InvalidArgument, LoadError, OvserveError

T = TypeVar("T")
END = object()  # of a generator
LONGEST = 500  # characters of an exception's text in an error


def last_line(error: BaseException) -> str:
    """Return the kind of an exception and the first line of its text."""
    text = str(error.msg if isinstance(error, SyntaxError) else error).strip().partition("\n")[0]
    if isinstance(error, SyntaxError) and error.lineno:
        text += f" ({Path(error.filename or '').name}:{error.lineno})"
    name = type(error).__name__
    return f"{name}: {text[:LONGEST]}" if text else name


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
        made = getattr(module, MODEL_CLASS, None)
        if not isinstance(made, type):
            raise self._error(f"{path.name} defines no class {MODEL_CLASS}")
        if not callable(getattr(made, "execute", None)):
            raise self._error(f"{MODEL_CLASS} of {path.name} has no method execute")
        about = {
            "input_names": [*self.node.inputs, *self.node.loopback[:1]],
            "output_names": [*self.node.outputs, *self.node.loopback[1:]],
            "node_name": self.node.name,
            "base_path": str(path.parent),
        }
        try:
            model = made()
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

    def run(self, invocation: Invocation, asked: ExecuteArguments) -> Iterator[Result]:
        """Raises InvalidArgument with OVMS's text and the exception of the handler."""
        given = [_given(value, blob) for value, blob in zip(asked.values, invocation.blobs, strict=True)]
        answer = self._call(invocation, asked.request, partial(self._model.execute, given))
        if isinstance(answer, Iterator):
            yield from self._generated(invocation, asked.request, answer)
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
            return checked(partial(answers.result, answer, generated=generated))
        except WrongAnswer as error:
            raise self._wrong(str(error)) from None

    def _failed(self, reason: str) -> OvserveError:
        """Return the error of a call: InvalidArgument as in OVMS, and Internal over HTTP."""
        return (Internal if self.node.http else InvalidArgument)(f"{FAILED}: {reason}")

    def _wrong(self, reason: str) -> OvserveError:
        """Return the error of an answer that is not valid, and log it."""
        with printing_as(self.node.name):
            sys.stderr.write(f"execute returned a wrong value: {reason}\n")
        return self._failed(reason)


def _given(value: Given, blob: memoryview) -> pyovms.Tensor | HttpRequest:
    if isinstance(value, RequestValue):
        return HttpRequest(value.name, value.method, value.path, value.query, value.headers, blob.tobytes())
    return pyovms.given(value.name, value.datatype, value.shape, blob)
