"""What is told of a call once it has ended: one line in the log, and whoever else listens (`tracing.py`).

Each front calls `AccessLog.tell` as the last thing it does for a request. There is no prompt, no answer and
no key in it: the name of a key is the most that is said of who called.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ovserve.access.request_context import RequestContext

log = logging.getLogger("ovserve.access")


@dataclass(frozen=True)
class Ended:
    """`method` and `path` are as the wire has them; of gRPC "grpc" and the method's name. `failed` is by a
    fault of ours."""

    call: RequestContext
    method: str
    path: str
    status: int | str
    seconds: float
    failed: bool
    request_id: str
    headers: Mapping[str, str]  # of the request, names in lower case
    sent_status: int | None = (
        None  # of a stream that failed after its status was sent; `status` is the failure's
    )

    @property
    def fields(self) -> dict[str, Any]:
        """What there is to tell, in the order of the line. Times are in milliseconds."""
        call = self.call
        told: dict[str, Any] = {"method": self.method, "path": self.path, "status": self.status}
        if self.sent_status is not None:
            told["sent_status"] = self.sent_status
        if call.model:
            told["model"] = call.model
        if call.caller.name:
            told["key"] = call.caller.name
        if call.prompt_tokens or call.generated_tokens:
            told |= {"prompt_tokens": call.prompt_tokens, "generated_tokens": call.generated_tokens}
        if call.first_token is not None:
            told["first_token_ms"] = round(call.first_token * 1000, 1)
        return told | {"total_ms": round(self.seconds * 1000, 1)}


class AccessLog:
    def __init__(self, *listeners: Callable[[Ended], None]) -> None:
        self._listeners = listeners

    def tell(
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
        """`quiet` calls, those of probes, are told at level DEBUG, and to no listener."""
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
        fields = ended.fields
        more = " ".join(f"{name}={value}" for name, value in list(fields.items())[3:])
        level = logging.DEBUG if quiet else logging.INFO
        log.log(level, "%s %s %s %s", method, path, status, more, extra={"fields": fields})
        if not quiet:
            for listener in self._listeners:
                listener(ended)
