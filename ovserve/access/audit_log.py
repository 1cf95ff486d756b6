"""The audit log of --audit_log_path: one JSON object per request, about who did what and how it ended.

It has every request but successful probes, scrapes and what the console reads. So it holds refused keys,
changes of what is served, and inference, but no prompts, answers and keys. It has no level, unlike the access
log. A line is written when its request ends, and a file that is moved away is made anew.
"""

from __future__ import annotations

import contextlib
import json
import logging
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler

from ovserve.access.access_log import Ended

log = logging.getLogger(__name__)


class AuditLog:
    """A listener of the access log."""

    def __init__(self, path: str) -> None:
        """Raises OSError if the file cannot be written."""
        self._file = WatchedFileHandler(path, encoding="utf-8")
        self._failing = False

    def record(self, ended: Ended) -> None:
        """Append a line. A disk that is full does not end requests; it is logged when it begins and ends."""
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": ended.request_id,
            "remote": ended.call.remote,
            "key": ended.call.caller.name,
            "admin": ended.call.caller.rights.admin,
            **{name: value for name, value in ended.fields().items() if name != "key"},
        }
        try:
            self._file.reopenIfNeeded()
            if (stream := self._file.stream) is None:
                raise OSError("it could not be opened")
            stream.write(json.dumps(line, ensure_ascii=False) + "\n")
            stream.flush()
        except OSError as error:
            if not self._failing:
                log.error("the audit log cannot be written: %s", error)
            self._failing = True
            return
        if self._failing:
            log.warning("the audit log is written again; it lacks what happened meanwhile")
        self._failing = False

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what a full disk left unwritten was logged
            self._file.close()
