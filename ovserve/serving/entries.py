"""Every name ever served, and of plain models every version: which entry a request means."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from ovserve.access import as_system
from ovserve.errors import LoadError, ModelNotFound, OvserveError, Unavailable
from ovserve.serving.engines import Key
from ovserve.serving.plan import Current, Desired
from ovserve.serving.servable import Servable, State
from ovserve.serving.settings import ServableSpec
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


DEFAULT_VERSIONS = ("", "0")  # OVMS's 0, and none, mean the newest that answers


class Entries(dict[str, Entry]):
    """Entries by `ServableSpec.key`; none is ever removed."""

    def __init__(self) -> None:
        super().__init__()
        self._by_name: defaultdict[str, list[Entry]] = defaultdict(list)

    def begin(self, spec: ServableSpec, phase: Phase) -> None:
        entry = self.get(spec.key)
        if entry is None:
            entry = self[spec.key] = Entry(spec.name, spec)
            self._by_name[spec.name].append(entry)
        entry.begin(spec, phase)

    def clear(self) -> None:
        super().clear()
        self._by_name.clear()

    def all_names(self) -> list[str]:
        """Return the names that are served, or meant to be."""
        return [name for name, entries in self._by_name.items() if any(e.listed for e in entries)]

    def servable_of(self, name: str) -> str:
        """Return the servable that a name means: its own, or that of a variant; else the name as it is."""
        if name in self._by_name:
            return name
        served = (e.servable for e in self.values() if e.servable is not None)
        return next((s.name for s in served if name in s.variants), name)

    def of(self, name: str) -> list[Entry]:
        """Return the versions of a name, the oldest first; empty for an unknown name."""
        return sorted(self._by_name.get(name, ()), key=lambda entry: entry.spec.version)

    def entry(self, name: str) -> Entry:
        """Return the entry of a name that is served, or was. Raises ModelNotFound."""
        entry = self.find(name)
        if entry is None:
            raise ModelNotFound(f"model {name!r} is not known", param="model")
        return entry

    def statuses(self, name: str | None) -> list[ServableStatus]:
        """Return all statuses, or those of one name, by name and version. Raises ModelNotFound."""
        entries = self.values() if name is None else self.of(name)
        if not entries and name is not None:
            raise ModelNotFound(f"model {name!r} is not known", param="model")
        return sorted((entry.status for entry in entries), key=lambda s: (s.name, s.version))

    def find(self, name: str, version: str = "") -> Entry | None:
        """Return the version that a request means; None for an unknown name.

        Without a version it is the newest that answers, else the newest there is. Raises ModelNotFound for a
        version that the name does not have.
        """
        entries = self._by_name.get(name)
        if not entries:
            return None
        if version not in DEFAULT_VERSIONS:
            versions = [entry for entry in entries if str(entry.spec.version) == version]
            if not versions:
                raise ModelNotFound(_other_versions(name, entries, version), param="model_version")
            entries = versions
        if len(entries) == 1:
            return entries[0]
        return max(entries, key=lambda e: (e.servable is not None, e.listed, e.spec.version))


def _other_versions(name: str, entries: list[Entry], version: str) -> str:
    listed = sorted(entry.spec.version for entry in entries if entry.listed)
    if len(listed) == 1:
        return f"model {name!r} has only version {listed[0]}, not {version[:80]!r}"
    return f"model {name!r} has versions {', '.join(map(str, listed)) or 'none'}, not {version!r}"


RETRY_AFTER = 1.0  # seconds a client is asked to wait for a servable that is loading

T = TypeVar("T")


class Changes:
    """Changes of what is served, each a task of its own that outlives the client that asked for it."""

    def __init__(self, stopping: Callable[[], bool]) -> None:
        """`stopping`: whether the server stops, which ends changes under way."""
        self._stopping = stopping
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        """Start a change as the server, in a context of its own.

        Half a change would remain if its caller, a client, went away; and what it starts, such as engines,
        outlives the request that asked for it."""
        task = asyncio.create_task(_by_the_server(work), context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def result(self, task: asyncio.Task[T]) -> T:
        """Return the result of a change. Raises Unavailable if the server was stopped over it."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._stopping():
                raise Unavailable("the server is stopping", retry_after=RETRY_AFTER) from None
            raise

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _by_the_server(work: Callable[[], Awaitable[T]]) -> T:
    with as_system():
        return await work()
