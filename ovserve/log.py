"""Log formatting: one line a record, with the id of the request it belongs to. Set up by `server.py`."""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar

request_id: ContextVar[str] = ContextVar("request_id", default="-")

TRACE = 5  # OVMS's finest level; below DEBUG
LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR")


class Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        record.request_id = request_id.get()
        record.short = record.name.removeprefix("ovserve.")
        return super().format(record)


def setup(level: str) -> None:
    """Log to stderr; stdout is for what a command is asked to print."""
    logging.addLevelName(TRACE, "TRACE")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter("%(asctime)s %(levelname)-7s %(short)s [%(request_id)s] %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
