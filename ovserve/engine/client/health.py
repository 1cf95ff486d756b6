"""The health of one engine process: its progress (`watchdog.py`) and its memory (`memory_limit.py`).

The client checks it a few times per timeout and acts on the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ovserve.engine.client.hosting.hosted import ModelProcess
from ovserve.engine.client.memory_limit import MemoryLimit
from ovserve.engine.client.state import RestartPolicy
from ovserve.engine.client.watchdog import Watchdog
from ovserve.engine.protocol.messages import Ping
from ovserve.engine.protocol.specs import Spec

SLOWEST_READING = 10.0  # tokens a second of a prompt that is read in one step; slower is stalled


class Health:
    def __init__(self, process: ModelProcess, spec: Spec, policy: RestartPolicy) -> None:
        self._process = process
        self._whole_prompts = spec.whole_prompts
        self._policy = policy
        self.watchdog = Watchdog(policy.stall_timeout)
        self.memory_limit = process.memory_limit or MemoryLimit(policy.memory_limit, process.pid)

    def check(
        self,
        *,
        requests: int,
        pending: int,
        timeout: float,
        unread_tokens: Callable[[], int],
        busy: bool = False,
    ) -> str | None:
        """Return why it is stalled, or None. An idle process is pinged.

        `timeout` is what its requests allow a step; inputs that are read in one step get time by their
        length. `busy`: it works on requests that need no progress, so it is not at rest.
        """
        if timeout and self._whole_prompts:
            timeout += unread_tokens() / SLOWEST_READING
        stalled = self.watchdog.check(
            time.monotonic(),
            requests=requests,
            pending=pending,
            sent=self._process.sent + busy,
            timeout=timeout,
        )
        if stalled is None and self.watchdog.ping(self._process.sent):
            self._process.send(Ping())
        self._process.check_kills()
        self.memory_limit.check()
        return stalled
