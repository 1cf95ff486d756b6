"""Python nodes: what the process of a graph's handlers is started with, and what a call carries.

A handler is a file with a class `OvmsPythonModel`. All handlers of a graph run in one process of its own.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from ovserve.engine.protocol.specs import Facts, Spec

EXECUTE = "execute"  # the one method of such an engine
MODEL_CLASS = "OvmsPythonModel"
FAILED = "Error occurred during graph execution"  # OVMS's whole text for a handler that raised
MAX_CALLS = 16  # calls at a time
CALL_SECONDS = 600.0


class PythonNode(msgspec.Struct, frozen=True):
    """One node. `inputs` and `outputs` are names of streams in the order of tags, without those of LOOPBACK.

    `loopback` has its names in and out; without them the handler cannot answer with a generator.
    `call_timeout` in seconds, for a call or one item of a generator; 0: none.
    """

    name: str
    handler: str  # absolute path of the file
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    loopback: tuple[str, ...] = ()
    request: str = ""  # that of the inputs which carries HTTP requests
    response: str = ""  # that of the outputs which carries HTTP responses
    call_timeout: float = CALL_SECONDS

    @property
    def http(self) -> bool:
        """Return whether clients of HTTP see what becomes of a call."""
        return bool(self.request or self.response)


class PythonFacts(Facts, frozen=True, omit_defaults=True):
    """`max_calls` is the number of threads."""

    python: str = ""  # version of the interpreter
    executable: str = ""


class PythonSpec(Spec, frozen=True):
    """The handlers of one graph; `model_path` is the file of the first, and `servable` the graph's name."""

    kind: ClassVar[str] = "python"
    backend: ClassVar[str] = "ovserve.kinds.python.worker.engine:PythonEngine"
    facts_type: ClassVar[type[Facts]] = PythonFacts
    one_servable: ClassVar[bool] = True
    patient: ClassVar[bool] = True
    repeatable: ClassVar[bool] = False
    prewarmed: ClassVar[bool] = False

    nodes: tuple[PythonNode, ...] = ()
    threads: int = MAX_CALLS
    interpreter: str = ""  # absolute path; empty: the server's own

    @property
    def python(self) -> str:
        return self.interpreter

    @property
    def model_paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node.handler for node in self.nodes))


class TensorValue(msgspec.Struct, frozen=True, tag="tensor"):
    """A tensor; its bytes are the blob at the same place. `name` is a stream's, or that of a converter."""

    name: str
    datatype: str  # as in KServe, or any word of the handler's
    shape: tuple[int, ...]


class RequestValue(msgspec.Struct, frozen=True, tag="request"):
    """An HTTP request; its body is the blob at the same place. Header names are lower case."""

    name: str
    method: str
    path: str
    query: str
    headers: dict[str, str]


class ResponseValue(msgspec.Struct, frozen=True, tag="response", omit_defaults=True):
    """An HTTP response, or its next chunk if `begins` is false; the bytes are the blob at the same place."""

    name: str
    begins: bool = True
    status: int = 200
    content_type: str = ""
    headers: dict[str, str] = {}


Given = TensorValue | RequestValue
Made = TensorValue | ResponseValue


class ExecuteArguments(msgspec.Struct, frozen=True, array_like=True):
    """The arguments of a call, besides its blobs. `request` identifies the request in the log."""

    node: str
    values: tuple[Given, ...]
    request: str = ""


class Outputs(msgspec.Struct, frozen=True, array_like=True):
    """An item of a call: what the handler returned, or what its generator yielded."""

    values: tuple[Made, ...]
    generated: bool = False
