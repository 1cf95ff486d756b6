"""The health of one engine process. The watchdog decides when it counts as stalled.

Two things are watched in an engine that holds work, each of which may last `timeout` seconds:

- Silence. An engine that makes steps sends a message at least ten times a second, or after each step if that
takes longer, so a message is its heartbeat. None means a step or an admission that does not end, or a process
that is stopped.
- Steps without progress: heartbeats, but for no request a token, an admission or an end, the cache does not
  grow, and no less of the prompts is left to compute. A long prompt is progress however long it takes: 8,000
  tokens of a 3B model take five minutes with AVX2 alone.

An idle engine sends nothing by itself, so it is pinged every PING_SECONDS: a stopped process is
found before the next request finds it. If it was given no work since its last answer, it only has
to wake up, and REST_SECONDS are enough; else it may be in the step of a request that was aborted.

Time is counted by checks and not read off a clock, because this process may have been stopped or starved
itself, and a laptop may have slept. A check adds at most two intervals, whatever the clock says in between.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from ovserve.engine.client.host import ModelProcess
from ovserve.engine.client.settings import MemoryLimit
from ovserve.engine.client.state import RestartPolicy
from ovserve.engine.protocol.messages import Ping, Usage
from ovserve.engine.protocol.specs import Spec

CHECKS_PER_TIMEOUT = 8  # per timeout
LONGEST_INTERVAL = 1.0  # seconds
PING_SECONDS = 5.0  # without work, or since the last answer; less for a timeout under four times that
REST_SECONDS = 20.0
MIN_PREFILL_RATE = 10.0  # tokens a second of a prompt that is read in one step; slower is stalled


class Watchdog:
    """Watches one engine process. `timeout` 0: never stalled, except for requests that set their own."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self.interval = min(timeout / CHECKS_PER_TIMEOUT, LONGEST_INTERVAL) if timeout else LONGEST_INTERVAL
        self._received = self._moved = False  # since the last check
        self._silent = self._stuck = self._idle = 0.0  # seconds
        self._looked: float | None = None
        self._cache: tuple[float, int] | None = None
        self._to_prefill: dict[int, int] = {}  # the fewest tokens of each prompt that were left to compute
        self._longest = timeout or math.inf  # longest timeout since it was last idle
        self._pinged: int | None = None  # messages sent up to the unanswered ping
        self._rested: int | None = None  # messages sent up to the last answered ping

    def on_message(self, *, progress: bool, usage: Usage | None = None) -> None:
        """Record a message; `progress`: some request gained something by it."""
        self._received = True
        if usage is not None:
            if (cache := (usage.cache, usage.cache_bytes)) != self._cache:
                self._cache, progress = cache, True
            to_prefill, self._to_prefill = self._to_prefill, {}
            for id_, tokens in usage.to_prefill:
                fewest = to_prefill.get(id_, math.inf)
                progress |= tokens < fewest
                self._to_prefill[id_] = int(min(tokens, fewest))  # one that is preempted begins again
        if progress:
            self._moved = True

    def answered(self) -> None:
        """The ping."""
        self._received = True
        self._rested, self._pinged = self._pinged, None
        self._longest = self._timeout or math.inf

    def ping(self, num_sent: int) -> bool:
        """Return whether to send a ping now, after `num_sent` messages; call it after each check."""
        if not self._timeout or self._pinged is not None:
            return False
        if self._idle < min(PING_SECONDS, self._timeout / 4):
            return False
        self._idle, self._pinged = 0.0, num_sent + 1
        return True

    def check(
        self, now: float, *, requests: int, pending: int, num_sent: int = 0, timeout: float | None = None
    ) -> str | None:
        """Return why it is stalled, or None.

        `requests` and `pending` count what it holds, `num_sent` the messages
        it was sent, `now` is monotonic; `timeout` replaces its own if its requests set one.
        """
        passed = 0.0 if self._looked is None else min(now - self._looked, 2 * self.interval)
        self._looked = now
        holds = requests or pending
        self._idle = 0.0 if holds else self._idle + passed
        owes = holds or self._pinged is not None
        self._silent = 0.0 if self._received or not owes else self._silent + passed
        self._stuck = 0.0 if self._moved or not requests else self._stuck + passed
        self._received = self._moved = False
        patience = (self._timeout if timeout is None else timeout) or math.inf
        if holds:
            self._longest = max(self._longest, patience)
        else:
            patience = self._longest
            if self._at_rest(num_sent):
                patience = min(patience, REST_SECONDS)
        if self._silent >= patience:
            if not holds:
                return f"the engine had no work and did not answer within {patience:g} s"
            return f"the engine did not end a step within {patience:g} s"
        if self._stuck >= patience:
            return f"the engine made steps but no token within {patience:g} s"
        return None

    def _at_rest(self, num_sent: int) -> bool:
        """Return whether it was sent only pings since it last answered one."""
        return self._pinged is not None and self._pinged == num_sent and self._rested == num_sent - 1


class Health:
    """The health of one engine process: its progress and its memory.

    The client checks it a few times per timeout and acts on the result.
    """

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
        prefill_tokens: Callable[[], int],
        busy: bool = False,
    ) -> str | None:
        """Return why it is stalled, or None. An idle process is pinged.

        `timeout` is what its requests allow a step; inputs that are read in one step get time by their
        length. `busy`: it works on requests that need no progress, so it is not at rest.
        """
        if timeout and self._whole_prompts:
            timeout += prefill_tokens() / MIN_PREFILL_RATE
        stalled = self.watchdog.check(
            time.monotonic(),
            requests=requests,
            pending=pending,
            num_sent=self._process.sent + busy,
            timeout=timeout,
        )
        if stalled is None and self.watchdog.ping(self._process.sent):
            self._process.send(Ping())
        self._process.check_kills()
        self.memory_limit.check()
        return stalled
