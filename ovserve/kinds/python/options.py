"""The options of a Python node, and what its streams are. And the file of its handler, as far as it can be
checked without running it. Raises LoadError naming the field.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from ovserve.api.kserve import Tensor
from ovserve.graph import Input, Node, Output
from ovserve.graph.node import Endpoint
from ovserve.kinds.payload import AnswerPacket, HttpPayload
from ovserve.kinds.python.spec import (
    CALL_SECONDS,
    MAX_CALLS,
    MODEL_CLASS,
    PythonNode,
    PythonSpec,
)
from ovserve.protos.options_pb2 import (
    PythonExecutorCalculatorOptions,
)

LOOPBACK, REQUEST, RESPONSE = "LOOPBACK", "HTTP_REQUEST_PAYLOAD", "HTTP_RESPONSE_PAYLOAD"
ENDPOINT = re.compile(r"[^/?#*\s]+(/[^/?#*\s]+)*(/\*)?")
MAX_THREADS = 256


@dataclass(frozen=True)
class PythonOptions:
    """The options of one node, with its streams in the order of tags, and the spec of its process."""

    spec: PythonSpec
    inputs: tuple[tuple[Input[Any], str], ...] = ()
    outputs: Mapping[str, Output[Any]] = field(default_factory=dict)
    endpoints: tuple[str, ...] = ()  # as the graph declares them


def parse(node: Node) -> PythonOptions:
    options = node.options(PythonExecutorCalculatorOptions)
    if options is None:
        raise node.error(
            "required: node_options with mediapipe.PythonExecutorCalculatorOptions", "node_options"
        )
    if not node.config.message.node[node.position].name:
        raise node.error("required for a Python node", "name")
    path = handler_path(node, options.handler_path)
    threads = options.max_parallel_calls if options.HasField("max_parallel_calls") else MAX_CALLS
    if not 1 <= threads <= MAX_THREADS:
        raise node.error(f"expected 1 to {MAX_THREADS}, got {threads}", "max_parallel_calls")
    seconds = options.call_timeout if options.HasField("call_timeout") else CALL_SECONDS
    if not 0 <= seconds < float("inf"):
        raise node.error(f"expected seconds, 0 for no timeout, got {seconds:g}", "call_timeout")
    inputs, outputs = _data(node, "input_stream"), _data(node, "output_stream")
    wiring = PythonNode(
        node.name,
        str(path),
        tuple(end.name for end in inputs),
        tuple(end.name for end in outputs),
        _loopback(node),
        request=_http(node, inputs, REQUEST),
        response=_http(node, outputs, RESPONSE),
        call_timeout=round(seconds, 6),
    )
    into = [(Input(_port(end), HttpPayload if end.name == wiring.request else Tensor), end) for end in inputs]
    out_of = [
        (Output(_port(end), AnswerPacket if end.name == wiring.response else Tensor), end) for end in outputs
    ]
    return PythonOptions(
        PythonSpec(
            str(path), nodes=(wiring,), threads=threads, interpreter=_interpreter(node, options.interpreter)
        ),
        tuple((port, end.name) for port, end in into),
        {end.name: port for port, end in out_of},
        _endpoints(node, options.endpoints, wiring),
    )


def _interpreter(node: Node, text: str) -> str:
    if not text:
        return ""
    path = (node.config.base / text).absolute()
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise node.error(f"{path} is not a program", "interpreter", text)
    return str(path)


def _port(end: Endpoint) -> str:
    return f"{end.tag}:{end.index}"


def _http(node: Node, ends: Sequence[Endpoint], tag: str) -> str:
    """Return the name of the stream with this tag, or nothing."""
    names = [end.name for end in ends if end.tag == tag]
    if len(names) > 1:
        raise node.error(f"{tag} may be given once, got {', '.join(names)}")
    return names[0] if names else ""


def _endpoints(node: Node, endpoints: Iterable[str], wiring: PythonNode) -> tuple[str, ...]:
    for endpoint in endpoints:
        if not wiring.request:
            raise node.error(f"only a node with the input {REQUEST} has endpoints", "endpoints", endpoint)
        if not ENDPOINT.fullmatch(endpoint):
            raise node.error(
                f"expected a path behind /v3/, such as 'tools/search' or 'tools/*', got {endpoint!r}",
                "endpoints",
                endpoint,
            )
    return tuple(endpoints)


def _data(node: Node, side: str) -> list[Endpoint]:
    """Return the streams of data, in the alphabetical order of their tags."""
    ends = node.inputs if side == "input_stream" else node.outputs
    data_ends = sorted((end for end in ends if end.tag != LOOPBACK), key=lambda end: end.key)
    if not data_ends:
        raise node.error(f"at least one is required besides {LOOPBACK}", side)
    return data_ends


def _loopback(node: Node) -> tuple[str, ...]:
    into, out_of = ([e.name for e in ends if e.tag == LOOPBACK] for ends in (node.inputs, node.outputs))
    if bool(into) != bool(out_of):
        side = "input_stream" if out_of else "output_stream"
        raise node.error(f"{LOOPBACK} is on one side of the node; it is needed on both, or on none", side)
    return (*into[:1], *out_of[:1])


def join(nodes: Sequence[tuple[Node, PythonOptions]]) -> PythonOptions:
    """Return the options of one process for all nodes. Raises LoadError for two nodes of one name."""
    names: set[str] = set()
    for node, _ in nodes:
        name = node.config.message.node[node.position].name
        if name in names:
            raise node.error(f"{name!r} is the name of another Python node of this graph", "name")
        names.add(name)
    specs = [options.spec for _, options in nodes]
    own = {spec.threads for spec in specs} - {MAX_CALLS}
    pythons = dict.fromkeys(spec.interpreter for spec in specs if spec.interpreter)
    if len(pythons) > 1:
        raise nodes[-1][0].error(
            f"the nodes of a graph share one process, and two interpreters are named: {', '.join(pythons)}",
            "interpreter",
        )
    return PythonOptions(
        msgspec.structs.replace(
            specs[0],
            nodes=tuple(node for spec in specs for node in spec.nodes),
            threads=max(own, default=MAX_CALLS),
            interpreter=next(iter(pythons), ""),
        )
    )


def handler_path(node: Node, text: str) -> Path:
    """Return the file that the option names, relative to the graph's directory. Raises LoadError."""
    field = "handler_path"
    if not text:
        raise node.error("required, but missing", field)
    if "\0" in text:
        raise node.error("holds a NUL character", field)
    path = (node.config.base / text).absolute()
    if path.suffix != ".py":
        raise node.error(f"expected the path of a .py file, got {text!r}", field, text)
    if not path.is_file():
        raise node.error(f"{path} does not exist", field, text)
    return path


def check_handler(node: Node, handlers: Iterable[PythonNode]) -> None:
    """Compile the files and look for their class. Raises LoadError naming the first that is wrong."""
    for handler in handlers:
        fault = _fault(Path(handler.handler))
        if fault:
            names = [each.name for each in node.config.message.node]
            raise replace(node, name=handler.name, position=names.index(handler.name)).error(
                fault, "handler_path"
            )


def notes(spec: PythonSpec) -> list[str]:
    """Return a line for each node, for `ovserve check`."""
    return [
        f"Python node {node.name!r} calls {node.handler}, "
        + (f"{node.call_timeout:g} s at most" if node.call_timeout else "without a time limit")
        for node in spec.nodes
    ]


def _fault(path: Path) -> str:
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    except (SyntaxError, ValueError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else 0
        return f"{path}:{line or 1}: {error.msg if isinstance(error, SyntaxError) else error}"
    defined: set[str] = set()
    for statement in ast.walk(tree):
        if isinstance(statement, ast.ClassDef):
            defined.add(statement.name)
            if statement.name == MODEL_CLASS and not statement.bases and not _has_execute(statement):
                return f"{path}:{statement.lineno}: {MODEL_CLASS} has no method execute"
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            defined |= {(alias.asname or alias.name) for alias in statement.names}
        elif isinstance(statement, ast.Name) and isinstance(statement.ctx, ast.Store):
            defined.add(statement.id)
    return "" if {MODEL_CLASS, "*"} & defined else f"{path} defines no class {MODEL_CLASS}"


def _has_execute(statement: ast.ClassDef) -> bool:
    """Return whether a class without bases has the attribute; a decorator may add it."""
    if statement.decorator_list:
        return True
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return "execute" in names or any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "execute"
        for node in statement.body
    )
