"""One name that the manager knows: what it serves, what it was last asked to serve, and the outcome."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum

from ovserve.errors import LoadError, OvserveError
from ovserve.serving.engines import Key
from ovserve.serving.plan import Current, Desired
from ovserve.serving.servable import Servable, State
from ovserve.serving.spec import ServableSpec
from ovserve.serving.status import ServableStatus, VersionState


class Phase(Enum):
    """The state of a name while no servable is current."""

    WAITING = "waiting"  # waits for its turn to load
    LOADING = "loading"
    FAILED = "failed"
    RETIRING = "retiring"
    GONE = "gone"


@dataclass
class Entry:
    """One name. `servable` gets requests; assigning it is the swap. `error` is why the last load failed."""

    name: str
    spec: ServableSpec
    servable: Servable | None = None
    phase: Phase = Phase.WAITING
    error: OvserveError | None = None
    active: Desired | None = None
    attempted: Desired | None = None
    keys: frozenset[Key] = frozenset()  # keys of the engines of `servable`
    unloaded: bool = False
    revision: int = 0
    since: int = field(default_factory=lambda: int(time.time()))

    @property
    def current(self) -> Current:
        transient = isinstance(self.error, LoadError) and self.error.transient
        return Current(self.active, self.attempted, self.unloaded, transient)

    @property
    def watched(self) -> set[str]:
        """Return the model paths to watch: the current ones and those tried last."""
        return {path for w in (self.active, self.attempted) if w is not None for path, _ in w[1].models}

    @property
    def listed(self) -> bool:
        """Return whether it is served, or meant to be."""
        return self.servable is not None or self.phase not in (Phase.RETIRING, Phase.GONE)

    def begin(self, spec: ServableSpec, phase: Phase) -> None:
        self.spec, self.unloaded = spec, False
        if self.servable is None:
            self.phase = phase

    def swap(self, servable: Servable, desired: Desired, keys: frozenset[Key]) -> Servable | None:
        """Set the new servable; return the old one, which still answers its running requests."""
        old, self.servable = self.servable, servable
        self.active = self.attempted = desired
        self.keys, self.error = keys, None
        self.revision += 1
        self._touch()
        return old

    def fail(self, error: OvserveError, desired: Desired) -> None:
        self.error, self.attempted = error, desired
        if self.servable is None:
            self.phase = Phase.FAILED
        self._touch()

    def clear_error(self) -> None:
        """Clear the error: the change that failed was taken back."""
        self.error, self.attempted = None, self.active
        self._touch()

    def unload(self, phase: Phase, *, unloaded: bool = False) -> Servable | None:
        """Take it out of service; return the servable that got requests so far."""
        old, self.servable = self.servable, None
        self.active = self.attempted = None
        self.keys, self.error = frozenset(), None
        self.phase, self.unloaded = phase, unloaded
        self._touch()
        return old

    def ended(self) -> None:
        if self.phase is Phase.RETIRING:
            self.phase = Phase.GONE
            self._touch()

    @property
    def status(self) -> ServableStatus:
        state, code, reason = self._state()
        return ServableStatus(
            self.name,
            state,
            code,
            reason,
            self.spec.version,
            self.revision,
            self.since,
            self.spec.plain,
            self.servable.residence if self.servable is not None else "",
        )

    def _state(self) -> tuple[VersionState, str, str]:
        why = str(self.error) if self.error is not None else ""
        if self.servable is None:
            if self.phase is Phase.FAILED:
                return VersionState.LOADING, "FAILED_PRECONDITION", why
            return _OF_PHASE[self.phase], "OK", "unloaded on request" if self.unloaded else ""
        engines = self.servable.state
        if engines is not State.AVAILABLE:
            code = "FAILED_PRECONDITION" if engines is State.FAILED else "UNAVAILABLE"
            return VersionState.LOADING, code, self.servable.reason
        if why:
            return VersionState.AVAILABLE, "FAILED_PRECONDITION", f"the last change was not loaded: {why}"
        return VersionState.AVAILABLE, "OK", ""

    def _touch(self) -> None:
        self.since = int(time.time())


_OF_PHASE = {
    Phase.WAITING: VersionState.START,
    Phase.LOADING: VersionState.LOADING,
    Phase.RETIRING: VersionState.UNLOADING,
    Phase.GONE: VersionState.END,
}
