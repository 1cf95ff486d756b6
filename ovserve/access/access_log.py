"""The logs of requests that have ended: the access log, whose lines also go to listeners (tracing), and the
audit log, which is one of them.

Each transport calls `AccessLog.log` last for every request. It holds no prompt, no answer and no key; the
name of a key is all that identifies the caller.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ovserve.access.request_context import RequestContext
from ovserve.errors import OvserveError
from ovserve.log import ACCESS, LogFile

log = logging.getLogger(ACCESS)
MAX_PARAM_LENGTH = 80  # characters; a client may have chosen them
PLAIN_PARAM = re.compile(r"[\w.\[\]/-]+", re.ASCII)


# The records of a level differ in three values, but `makeRecord` looks at paths and threads each time: 12 us.
_RECORDS = {
    level: vars(logging.LogRecord(log.name, level, "", 0, "", None, None, "log"))
    for level in (logging.DEBUG, logging.INFO)
}


def _record(level: int, ended: Ended) -> logging.LogRecord:
    record, now = logging.LogRecord.__new__(logging.LogRecord), time.time()
    vars(record).update(
        _RECORDS[level], msg=ended.text, created=now, msecs=now % 1 * 1000, fields=ended.fields
    )
    return record


class Ended(NamedTuple):
    """A request that has ended. `method` and `path` are those of the wire; for gRPC "grpc" and the method's
    name.

    `failed` means an internal fault of the server.
    """

    call: RequestContext
    method: str
    path: str
    status: int | str
    seconds: float
    failed: bool
    request_id: str
    headers: Mapping[str, str]  # request headers, names in lower case
    # Set if the stream failed after its status was sent; `status` is the failure's.
    sent_status: int | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of the log line, in its order. Times are in milliseconds."""
        return {"method": self.method, "path": self.path, "status": self.status, **self._more}

    @property
    def text(self) -> str:
        more = self._more
        return f"{self.method} {self.path} {self.status} " + " ".join([f"{n}={more[n]}" for n in more])

    @property
    def _more(self) -> dict[str, Any]:
        call, record = self.call, dict[str, Any]()
        if self.sent_status is not None:
            record["sent_status"] = self.sent_status
        if call.model:
            record["model"] = call.model
        if call.caller.name:
            record["key"] = call.caller.name
        if call.prompt_tokens or call.generated_tokens:
            record |= {"prompt_tokens": call.prompt_tokens, "generated_tokens": call.generated_tokens}
        if call.first_token is not None:
            record["first_token_ms"] = round(call.first_token * 1000, 1)
        if (error := call.failure or call.error) is not None:
            record |= error_fields(error)
        record["total_ms"] = round(self.seconds * 1000, 1)
        return record


def error_fields(error: OvserveError) -> dict[str, str]:
    """Return why a request failed, without its message: that repeats values of the client."""
    fields = {"error": error.code or error.kind}
    if param := error.param:
        fields["param"] = param if PLAIN_PARAM.fullmatch(param) else json.dumps(param)
        fields["param"] = fields["param"][:MAX_PARAM_LENGTH]
    return fields


class Running(NamedTuple):
    """A request that has not ended. `number` counts from 1, over all transports."""

    number: int
    call: RequestContext
    method: str
    path: str
    request_id: str


class AccessLog:
    def __init__(self, *listeners: Callable[[Ended], None]) -> None:
        self._listeners = list(listeners)
        self.times_nodes = False  # for tracing
        self._last = 0
        self._running: dict[RequestContext, Running] = {}

    @property
    def running(self) -> list[Running]:
        """The requests that have begun and not ended, the oldest first."""
        return list(self._running.values())

    def begin(self, call: RequestContext, method: str, path: str, request_id: str) -> None:
        """Record that a request has begun; `log` records its end."""
        self._last += 1
        if self.times_nodes:
            call.nodes = {}
        self._running[call] = Running(self._last, call, method, path, request_id)

    def listen(self, listener: Callable[[Ended], None]) -> None:
        """Call `listener` with each request that ends from now on."""
        self._listeners.append(listener)

    def log(
        self,
        call: RequestContext,
        method: str,
        path: str,
        status: int | str,
        *,
        failed: bool,
        quiet: bool,
        request_id: str,
        headers: Mapping[str, str],
        sent_status: int | None = None,
    ) -> None:
        """Writes the line and calls listeners. `quiet` requests (probes) go to level DEBUG and to no
        listener."""
        self._running.pop(call, None)
        ended = Ended(
            call,
            method,
            path,
            status,
            time.monotonic() - call.started,
            failed,
            request_id,
            headers,
            sent_status,
        )
        level = logging.DEBUG if quiet else logging.INFO
        if log.isEnabledFor(level):  # `log.log` would also search for the line of code that calls it
            log.handle(_record(level, ended))
        if not quiet:
            for listener in self._listeners:
                listener(ended)


class AuditLog:
    """The file of --audit_log_path: one JSON object per request, about who did what and how it ended.

    It has every request but successful probes, scrapes and what the console reads. So it holds refused keys,
    changes of what is served, and inference, but no prompts, answers and keys. It has no level, unlike the
    access log. A line is written when its request ends, and a file that is moved away is made anew.
    """

    def __init__(self, path: str) -> None:
        """Raises OSError if the file cannot be written."""
        self._file = LogFile(path)

    def record(self, ended: Ended) -> None:
        """Append a line."""
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": ended.request_id,
            "remote": ended.call.remote,
            "key": ended.call.caller.name,
            "admin": ended.call.caller.rights.admin,
            **{name: value for name, value in ended.fields().items() if name != "key"},
        }
        self._file.write([json.dumps(line, ensure_ascii=False) + "\n"])

    def close(self) -> None:
        self._file.close()
