"""Graph files in the console: read one with its drawing, check an edit, apply it, follow it at work.

A check is that of `ovserve check`. Applying replaces the file in one step and loads that one servable; while
the new version loads, and if it fails, the old one serves on.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections import defaultdict, deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf import text_format
from google.protobuf.message import Message

from ovserve.console.capture import caller
from ovserve.errors import InvalidArgument, LoadError, ModelNotFound, OvserveError
from ovserve.graph.calculator import Calculator, Input, Output, Port, SideOutput, SidePacket
from ovserve.graph.graph import Graph
from ovserve.graph.pbtxt.schema import STRUCT
from ovserve.graph.planning import NodePlan
from ovserve.graph.registry import Registry
from ovserve.sandbox.templates import Templates
from ovserve.scratch import scratch_directory
from ovserve.serving.config.file import replace_file
from ovserve.serving.loader import check
from ovserve.serving.manager import Manager
from ovserve.serving.settings import ServableSpec

log = logging.getLogger(__name__)

FAMILIES = (  # by calculator or its options; the first that fits
    ("ends", ("Frontend", "ResponseWriter", "HttpLLM", "RealtimeSession")),
    ("parsing", ("Parser",)),
    ("engine", ("Executor", "LLM", "Inference", "Embedding", "Rerank", "Speech", "Transcri", "Image")),
    ("engine", ("Classification", "VoiceActivity", "RealtimeThink", "RealtimeSpeak")),
)


def drawing(graph: Graph) -> dict[str, Any]:
    plan = graph.plan
    return {
        "inputs": [{"tag": e.tag, "stream": e.name} for e in plan.inputs],
        "outputs": [{"tag": e.tag, "stream": e.name} for e in plan.outputs],
        "side_packets": sorted(plan.side_packets),
        "executors": {name: one.num_threads for name, one in plan.executors.items()},
        "max_queue_size": plan.max_queue_size,
        "warnings": list(plan.warnings),
        "nodes": [_node(node) for node in plan.nodes],
    }


def calculators(registry: Registry) -> list[dict[str, Any]]:
    """Return what an editor completes: names, tags and options of the calculators a graph may use."""
    return [_calculator(name, registry[name]) for name in registry.names]


def _calculator(name: str, cls: type[Calculator]) -> dict[str, Any]:
    kinds = (
        ("inputs", Input),
        ("outputs", Output),
        ("side_inputs", SidePacket),
        ("side_outputs", SideOutput),
    )
    ports = [
        value for base in reversed(cls.__mro__) for value in vars(base).values() if isinstance(value, Port)
    ]
    type_, fields = _option_fields(cls.options_type)
    return {
        "name": name,
        **{kind: sorted({p.label for p in ports if isinstance(p, type_)}) for kind, type_ in kinds},
        "options_type": type_,
        "options": fields,
    }


def _node(plan: NodePlan) -> dict[str, Any]:
    config, i = plan.node.config, plan.node.position
    first, last = config.lines_of_node(i)
    return {
        "name": plan.node.name,
        "calculator": plan.node.calculator,
        "about": (plan.cls.__doc__ or "").strip().split("\n\n")[0],
        "family": _family(plan),
        "lines": [first, last],
        "executor": plan.executor,
        "waits": plan.cls.waits,
        "inputs": [
            {"port": i.port.label, "stream": i.stream, "type": _type(i.port), "back_edge": i.back_edge}
            for i in plan.inputs
        ],
        "outputs": [{"port": o.port.label, "stream": o.stream, "type": _type(o.port)} for o in plan.outputs],
        "side_inputs": [{"port": p.label, "packet": name} for p, name in plan.side_packets],
        "side_outputs": [{"port": p.label, "packet": name} for p, name in plan.side_outputs],
        "sync_sets": len(plan.sync_sets),
        "options": _options(plan),
    }


def _option_fields(type_: type[Message] | type[msgspec.Struct] | None) -> tuple[str, list[str]]:
    """Return the name of the options' type in a graph file, and its fields."""
    if type_ is None:
        return "", []
    if issubclass(type_, msgspec.Struct):  # a calculator of the operator's own
        return STRUCT, list(type_.__struct_fields__)
    return type_.DESCRIPTOR.full_name, [field.name for field in type_.DESCRIPTOR.fields]


def _type(port: Port[Any]) -> str:
    return getattr(port.type, "__name__", str(port.type))


def _family(plan: NodePlan) -> str:
    if not plan.cls.__module__.startswith("ovserve."):
        return "own"
    words = plan.node.calculator
    return next((family for family, marks in FAMILIES if any(m in words for m in marks)), "transform")


def _options(plan: NodePlan) -> list[list[str]]:
    """Return name and value of each option that the file sets."""
    rows = []
    type_ = plan.cls.options_type
    if type_ is not None and issubclass(type_, msgspec.Struct):  # a calculator of the operator's own
        rows += [[name, str(value)] for name, value in msgspec.structs.asdict(plan.options(type_)).items()]
        type_ = plan.cls.engine_options_type
    message = plan.node.options(type_) if type_ is not None else None
    if message is None:
        return rows
    for field, value in message.ListFields():
        values = value if field.is_repeated else [value]
        rows += [[field.name, _value(field, one)] for one in values]
    return rows


def _value(field: Any, value: Any) -> str:
    if field.message_type is not None:
        return text_format.MessageToString(value, as_one_line=True)
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    return str(value).lower() if isinstance(value, bool) else str(value)


MAX_GRAPH_SIZE = 1 << 20  # bytes of a graph file
MAX_UNDO_TEXTS = 20  # earlier texts per graph, for undo


class Changed(OvserveError):
    """The file is not what the editor started from."""


class Graphs:
    def __init__(self, manager: Manager, *, write: bool) -> None:
        self._manager = manager
        self._write = write
        self._templates: Templates | None = None
        self._earlier: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=MAX_UNDO_TEXTS))

    async def stop(self) -> None:
        if self._templates is not None:
            await self._templates.stop()

    async def get(self, name: str) -> dict[str, Any]:
        """Return the graph of a name: its drawing, and for administrators its text and place."""
        spec = self._spec(name)
        status = self._manager.statuses(name)[0]
        entry = self._manager.entries.entry(name)
        details: dict[str, Any] = {
            "name": name,
            "state": status.state.name,
            "failed": status.failed,
            "reason": status.reason,
            "revision": status.revision,
            "since": status.since,
        }
        graph = entry.servable.graph if entry.servable is not None else None
        if graph is None:
            graph = await asyncio.to_thread(_graph_of, spec, self._manager)
        details["graph"] = drawing(graph) if graph is not None else None
        if caller().rights.admin:
            details |= await asyncio.to_thread(self._file, name, spec)
        elif details["graph"]:
            details["graph"]["warnings"] = []
            for node in details["graph"]["nodes"]:
                node["options"] = []  # they name files of the machine
        return details

    async def check(self, name: str, text: str) -> list[dict[str, Any]]:
        """Return what is wrong with a text that is to become the graph of this name."""
        from ovserve.serving.check import report  # an untouched console does not load it

        spec = self._spec(name)
        if len(text) > MAX_GRAPH_SIZE:
            raise InvalidArgument.at("text", f"expected at most {MAX_GRAPH_SIZE} characters, got {len(text)}")
        if self._templates is None:
            self._templates = Templates()
        with scratch_directory("ovserve-check-") as folder:
            file = folder / spec.graph.name
            await asyncio.to_thread(file.write_bytes, text.encode())
            edited = replace(spec, graph=file)
            try:
                (await asyncio.to_thread(check, edited, self._manager.registry)).graph.close()
            except LoadError as error:
                return [_from_error(each) for each in (error, *error.others)]
            result = await report(edited, self._manager.registry, self._templates)
            diagnostics = [_from_error(error) for error in result.located]
            located = {str(error) for error in result.located}
            diagnostics += [_plain(m, "error", str(folder)) for m in result.errors if m not in located]
            return diagnostics + [_plain(m, "warning", str(folder)) for m in result.warnings]

    async def apply(self, name: str, text: str, expected: str) -> dict[str, Any]:
        """Write the text and load it. `expected` is the hash of the text that was edited.

        Nothing is written if the check finds an error. Raises Changed, or InvalidArgument without a right to
        write.
        """
        spec = self._spec(name)
        if not self._write:
            raise InvalidArgument("graphs cannot be changed here; see --console_write")
        wrong = [d for d in await self.check(name, text) if d["severity"] == "error"]
        if wrong:
            return {"applied": False, "diagnostics": wrong}
        before = await asyncio.to_thread(_replace, spec.graph, text, expected)
        self._earlier[name].append(before)
        by = f" by {caller().name}" if caller().name else ""
        log.info("%s was changed in the console%s", spec.graph, by)
        error = ""
        try:
            await self._manager.load(name)
        except OvserveError as exc:
            error = str(exc)
        return {"applied": True, "loaded": not error, "error": error, "hash": digest(text), "diagnostics": []}

    def _spec(self, name: str) -> ServableSpec:
        if not caller().may_use(name):
            raise ModelNotFound(f"model {name!r} is not known", param="model")
        return self._manager.entries.entry(name).spec

    def _file(self, name: str, spec: ServableSpec) -> dict[str, Any]:
        try:
            text = spec.graph.read_bytes().decode()
        except (OSError, UnicodeDecodeError) as exc:
            return {"path": str(spec.graph), "text": None, "unreadable": str(exc), "writable": False}
        earlier = self._earlier[name]
        return {
            "path": str(spec.graph),
            "text": text,
            "hash": digest(text),
            "writable": self._write and os.access(spec.graph.resolve().parent, os.W_OK),
            "earlier": earlier[-1] if earlier else None,
            "calculators": _calculators(spec, self._manager),
        }


def _calculators(spec: ServableSpec, manager: Manager) -> list[dict[str, Any]]:
    try:
        return calculators(manager.registry.for_directory(spec.base))
    except LoadError:  # in its calculators.py, which the check reports
        return calculators(manager.registry)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _replace(path: Path, text: str, expected: str) -> str:
    """Replace the file in one step; return the text before. Raises Changed if that is not the expected
    one."""
    try:
        before = path.read_bytes().decode()
        if digest(before) != expected:
            raise Changed("the file has changed on disk since it was opened here")
        replace_file(path, text.encode())
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidArgument(f"{path} cannot be written: {exc}") from exc
    return before


def _graph_of(spec: ServableSpec, manager: Manager) -> Graph | None:
    """Return the graph of a file that is not served; None if it has an error, which its state describes."""
    try:
        graph = check(spec, manager.registry).graph
    except LoadError:
        return None
    graph.close()
    return graph


def _diagnostic(
    message: str, severity: str = "error", line: int = 0, node: str = "", field: str = ""
) -> dict[str, Any]:
    return {"line": line, "node": node, "field": field, "severity": severity, "message": message}


def _from_error(error: LoadError) -> dict[str, Any]:
    return _diagnostic(error.reason, "error", error.line, error.node, error.field)


def _plain(message: str, severity: str, folder: str) -> dict[str, Any]:
    """Return a message without a place of its own; that of a warning stands before it."""
    if not message.startswith(folder):
        return _diagnostic(message, severity)
    place, _, rest = message.partition(": ")
    line = place.rpartition(":")[2]
    return _diagnostic(rest, severity, int(line) if line.isdigit() else 0)
