"""Graph files in the console: read one with its drawing, check an edit, apply it, follow it at work.

A check is that of `ovserve check`. Applying replaces the file in one step and loads that one servable; while
the new version loads, and if it fails, the old one serves on.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import tempfile
from collections import defaultdict, deque
from dataclasses import replace
from pathlib import Path
from typing import Any

from ovserve.console.calls import caller
from ovserve.console.drawing import calculators, drawing
from ovserve.errors import InvalidArgument, LoadError, ModelNotFound, OvserveError
from ovserve.graph.graph import Graph
from ovserve.sandbox.templates import Templates
from ovserve.serving.loader import check
from ovserve.serving.manager import Manager
from ovserve.serving.spec import ServableSpec

MOST = 1 << 20  # bytes of a graph file
MAX_UNDO_TEXTS = 20  # earlier texts per graph, for undo

log = logging.getLogger(__name__)


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
        _check_size(text)
        if self._templates is None:
            self._templates = Templates()
        with tempfile.TemporaryDirectory(prefix="ovserve-check-") as folder:
            file = Path(folder) / spec.graph.name
            await asyncio.to_thread(file.write_bytes, text.encode())
            edited = replace(spec, graph=file)
            try:
                (await asyncio.to_thread(check, edited, self._manager.registry)).graph.close()
            except LoadError as error:
                return [_diagnostic(each) for each in (error, *error.others)]
            result = await report(edited, self._manager.registry, self._templates)
            diagnostics = [_diagnostic(error) for error in result.located]
            located = {str(error) for error in result.located}
            diagnostics += [_plain(m, "error", folder) for m in result.errors if m not in located]
            return diagnostics + [_plain(m, "warning", folder) for m in result.warnings]

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
        log.info("%s was changed in the console%s", spec.graph, _by())
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
    path = path.resolve()  # behind a link, the file itself is replaced
    try:
        before = path.read_bytes().decode()
        if digest(before) != expected:
            raise Changed("the file has changed on disk since it was opened here")
        mode = path.stat().st_mode & 0o777
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, mode)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
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


def _check_size(text: str) -> None:
    if len(text) > MOST:
        raise InvalidArgument(f"text: expected at most {MOST} characters, got {len(text)}", param="text")


def _diagnostic(error: LoadError) -> dict[str, Any]:
    return {
        "line": error.line,
        "node": error.node,
        "field": error.field,
        "severity": "error",
        "message": error.reason,
    }


def _plain(message: str, severity: str, folder: str) -> dict[str, Any]:
    """Return a message without a place of its own; that of a warning stands before it."""
    place, _, rest = message.partition(": ")
    line = place.rpartition(":")[2] if place.startswith(folder) else ""
    return {
        "line": int(line) if line.isdigit() else 0,
        "node": "",
        "field": "",
        "severity": severity,
        "message": rest if place.startswith(folder) else message,
    }


def _by() -> str:
    return f" by {caller().name}" if caller().name else ""
