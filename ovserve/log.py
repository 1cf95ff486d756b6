"""Log formatting: one line per record, with the id of the request it belongs to."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler

request_id: ContextVar[str] = ContextVar("request_id", default="-")

TRACE = 5  # OVMS's finest level; below DEBUG
LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR")
FORMATS = ("text", "json")


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(short)s [%(request_id)s] %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.request_id = request_id.get()
        record.short = record.name.removeprefix("ovserve.")
        return super().format(record)


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object per line. A record's `fields` stand next to the message, for log
    analysis."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name.removeprefix("ovserve."),
            "request_id": request_id.get(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def setup(level: str, form: str = "text", path: str = "") -> None:
    """Log to stderr, because stdout carries the output of a command, and to a file if given, which may be
    rotated.

    Raises OSError when the file cannot be written.
    """
    logging.addLevelName(TRACE, "TRACE")
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if path:
        handlers.append(WatchedFileHandler(path, encoding="utf-8"))
    for handler in handlers:
        handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level, handlers=handlers, force=True)
