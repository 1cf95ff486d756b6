"""The toy engine itself, which runs in the engine process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ovserve.engine.protocol.call_backend import Invocation, Result
from ovserve.engine.protocol.specs import Facts
from ovserve.errors import InvalidArgument
from toy_kind.spec import CountdownSpec


class Countdown:
    def __init__(self, spec: CountdownSpec) -> None:
        self._zero = Path(spec.model_path).read_text().strip()
        self._seconds = spec.step_seconds
        self.facts = Facts(engine="countdown 1.0", max_calls=2)

    def call(self, invocation: Invocation) -> Iterator[Any]:
        if invocation.method == "reverse":  # binary values, large ones through shared memory
            yield Result(len(invocation.blobs), tuple(bytes(blob)[::-1] for blob in invocation.blobs))
            return
        start = invocation.arguments(int)
        if start < 0:
            raise InvalidArgument(f"start: expected 0 or more, got {start}", param="start")
        if start == 13:
            raise RuntimeError("thirteen")
        for number in range(start, 0, -1):
            time.sleep(self._seconds)
            yield {"text": str(number), "pid": os.getpid()}
        yield {"text": self._zero, "pid": os.getpid()}
