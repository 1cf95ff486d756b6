"""Log formatting: one line per record, with the id of the request it belongs to.

Lines of the access log are written together, WRITE_SECONDS after the first at most. A write per request took
a tenth of the server's time for a small model. Any other line is written at once, with all lines before it.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

request_id: ContextVar[str] = ContextVar("request_id", default="-")

TRACE_LEVEL = 5  # OVMS's finest level; below DEBUG
LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR")
FORMATS = ("text", "json")
WRITE_SECONDS = 0.01
MAX_CHARACTERS = 10_000  # of a message, and of a traceback
ACCESS = "ovserve.access"  # the logger of requests that have ended

log = logging.getLogger(__name__)


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(short)s [%(request_id)s] %(message)s")

        self._second, self._shown = 0, ""  # the last one formatted

    def format(self, record: logging.LogRecord) -> str:
        id_, short = request_id.get(), record.name.removeprefix("ovserve.")
        if record.exc_info or record.exc_text or record.stack_info:
            record.request_id, record.short = id_, short
            return super().format(record)
        # The same line as that of the format above, in a third of the time.
        text = _on_one_line(_within_bounds(record.getMessage()))
        return f"{self.formatTime(record)} {record.levelname:7} {short} [{id_}] {text}"

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = _on_one_line(_within_bounds(record.message))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        """Indent it, so that a line of a client's text in an error does not look like a record."""
        return "  " + "\n  ".join(_within_bounds(super().formatException(ei)).splitlines())

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Format like the standard library, but each second once."""
        second = int(record.created)
        if second != self._second:
            self._second, self._shown = (
                second,
                time.strftime(self.default_time_format, time.localtime(second)),
            )
        return f"{self._shown},{int(record.msecs):03}"


def _within_bounds(text: str) -> str:
    """Return a text without its middle if it is too long: a client or a calculator may have written it."""
    more, half = len(text) - MAX_CHARACTERS, MAX_CHARACTERS // 2
    return text if more <= 0 else f"{text[:half]} [{more} characters left out] {text[-half:]}"


def _on_one_line(text: str) -> str:
    """Return a message with its control characters escaped: what a client sent begins no line of its own, and
    does nothing to a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object per line, for log analysis.

    What a record's function `fields` returns stands next to the message."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name.removeprefix("ovserve."),
            "request_id": request_id.get(),
            "message": _within_bounds(record.getMessage()),
            **getattr(record, "fields", dict)(),
        }
        if record.exc_info:
            line["exception"] = _within_bounds(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


class LogFile:
    """A file of lines that may be rotated, removed or refused at any time.

    Lines that cannot be written are lost. That is logged when it begins and when it ends. There is no buffer:
    one that a full disk refuses could not be closed, and a removed file would keep its space.
    """

    def __init__(self, path: str) -> None:
        """Raises OSError when the file cannot be written."""
        self._path = os.path.abspath(path)
        self._file = io.FileIO(self._path, "a")
        self._cut = False  # whether the last line ends in its middle
        self._lost = 0  # lines since the last write

    def write(self, lines: Sequence[str]) -> None:
        lost = self._lost
        try:
            self._append("".join(lines))
            self._lost = 0
        except OSError as error:
            self._lost += len(lines)  # before it is logged, which may come back here
            if not lost:
                log.error("%s cannot be written, and its lines are lost: %s", self._path, error.strerror)
        else:
            if lost:
                log.warning("%s is written again; %d lines were lost", self._path, lost)

    def close(self) -> None:
        self._file.close()

    def _append(self, text: str) -> None:
        there = not self._file.closed and os.path.exists(self._path)
        if not there or not os.path.samefile(self._path, self._file.fileno()):
            self._file.close()
            self._file, self._cut = io.FileIO(self._path, "a"), False
        # A line with half a surrogate pair must not lose the lines that are written with it.
        rest = ("\n" * self._cut + text).encode("utf-8", "backslashreplace")
        while rest:
            rest = rest[self._file.write(rest) :]
            self._cut = bool(rest)


def _to_stderr(lines: Sequence[str]) -> None:
    with suppress(OSError, ValueError):  # its disk is full, its reader has gone, or it is closed
        sys.stderr.write("".join(lines))
        sys.stderr.flush()


class _Lines(logging.Handler):
    """Writes the lines of requests together."""

    def __init__(self, file: LogFile | None = None) -> None:
        super().__init__()
        self._file = file
        self._write = _to_stderr if file is None else file.write
        self._lines: list[str] = []
        self._loop: asyncio.AbstractEventLoop | None = None  # that will flush them

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(self.format(record) + "\n")
        except Exception:  # noqa: BLE001  as in the standard library: a log line fails nothing
            self.handleError(record)
        if record.name != ACCESS or (loop := _running_loop()) is None:
            self.flush()
        elif self._loop is not loop:
            self._loop = loop
            loop.call_later(WRITE_SECONDS, self.flush)

    def flush(self) -> None:
        """Write what is kept. `logging` also calls it at the end of the process."""
        self.acquire()
        try:
            lines, self._lines, self._loop = self._lines, [], None
            if lines:
                self._write(lines)
        finally:
            self.release()

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            self._file.close()
        super().close()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def setup(level: str, form: str = "text", path: str = "") -> None:
    """Log to stderr, because stdout carries the output of a command, and to a file if given, which may be
    rotated.

    Raises OSError when the file cannot be written.
    """
    logging.addLevelName(TRACE_LEVEL, "TRACE")
    # Facts of a record that no format here shows: https://docs.python.org/3/howto/logging.html#optimization
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handlers = [_Lines(), *([_Lines(LogFile(path))] if path else [])]
    for handler in handlers:
        handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level, handlers=handlers, force=True)
