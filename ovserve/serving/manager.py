"""The set of servables by name. Transports look up a servable and its state here; whatever changes the
set (the start, a reload by REST, gRPC or signal, the watcher, a load by name) comes through here too.

    manager.get(name, version='')  the servable that answers a request now, or why there is none
    manager.statuses(name=None)    the states of all names ever served, or of one
    await manager.reload()         read the configuration again and make it so; concurrent calls share one
    await manager.replace(specs)   serve exactly these, until the next reload
    await manager.load(name, ...)  serve this one too, or again
    await manager.unload(name)     take it out of service until it is loaded or a reload is asked for

A change needs a caller with admin rights, which the server itself has. Only one runs at a time; how it comes
into force is `rollout.py`'s.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ovserve.access import as_system, current_request
from ovserve.engine.client.spare import Spare
from ovserve.errors import InvalidArgument, LoadError, ModelNotFound, Unavailable
from ovserve.graph import Registry
from ovserve.sandbox.bodies import Bodies
from ovserve.sandbox.images.loader import Media
from ovserve.serving.config.file import GraphsDirectory, Repository, RepositoryContent
from ovserve.serving.entries import RETRY_AFTER as RETRY_AFTER
from ovserve.serving.entries import Changes, Entries, Phase
from ovserve.serving.rollout import Rollout
from ovserve.serving.servable import Servable, State
from ovserve.serving.settings import ServableSpec, ServingSettings
from ovserve.serving.status import ReloadResult, ServableStatus
from ovserve.telemetry.metrics import Metrics

RETRY_FAILED = 30.0  # and for one that could not be loaded

log = logging.getLogger(__name__)


class Manager:
    """`repository` is where the configuration is read; without one, the set is what was loaded by name."""

    def __init__(
        self,
        registry: Registry,
        settings: ServingSettings | None = None,
        *,
        repository: Repository | None = None,
        metrics: Metrics | None = None,
        media: Media | None = None,
        spare: Spare | None = None,
        bodies: Bodies | None = None,
    ) -> None:
        self.registry, self._repository = registry, repository
        settings = settings or ServingSettings()
        self.aliases = settings.aliases
        self.entries = self._entries = Entries()
        self.metrics = metrics or Metrics()
        self.bodies = bodies or Bodies()
        media = media or Media()
        self._rollout = Rollout(registry, settings, self._entries, self.metrics, media, self.bodies, spare)
        self._specs: dict[str, ServableSpec] = {}  # what is to be served
        self._lock = asyncio.Lock()
        self._changes = Changes(lambda: self.stopping)
        self._reloading: asyncio.Task[ReloadResult] | None = None  # one that has not begun to read
        self._digest = ""  # of the configuration when it was read last
        self._seen: object = None  # by the last poll: only what has settled is acted upon
        self._applied = False
        self.reloads: Counter[str] = Counter()  # by ReloadResult.outcome; "invalid" configurations
        self.fault = ""  # why the configuration as it was read last is not in force
        self.stopping = False

    # -- who answers

    def get(self, name: str, version: str = "") -> Servable:
        """Raises ModelNotFound, or Unavailable while it loads, when it cannot, or when the server stops.

        What it returns may be replaced at the next `await`: start the answer or take a lease before.
        """
        if self.stopping:
            raise Unavailable("the server is stopping", retry_after=RETRY_AFTER)
        call = current_request()
        name = self._entries.servable_of(self.aliases.target(name, self._entries.all_names))
        # To a caller that may not use it, it does not exist, as to those who guess names.
        entry = self._entries.find(name, version) if call.caller.may_use(name) else None
        if entry is not None:
            if entry.servable is not None:
                call.model = name
                return entry.servable
            if entry.phase is Phase.FAILED:
                # The reason may hold paths; it is the operator's, in the log and the status.
                raise Unavailable(f"model {name!r} could not be loaded", retry_after=RETRY_FAILED)
            if entry.listed:
                raise Unavailable(f"model {name!r} is loading", retry_after=RETRY_AFTER)
        if self._repository is not None and not (self._applied or self._entries):
            raise Unavailable("the server is starting", retry_after=RETRY_AFTER)
        served = dict.fromkeys(s.name for s in self.usable)
        names = ", ".join(served) or "none"
        raise ModelNotFound(f"model {name[:80]!r} is not served; served: {names}", param="model")

    @property
    def single(self) -> bool:
        return len(self._listed()) == 1

    def only(self, name: str | None) -> Servable:
        """Return a servable by name; without a name the only one. Raises like `get`, or InvalidArgument."""
        names = self._listed()
        if name is None and len(names) > 1:
            raise InvalidArgument.at("model", f"required, as {len(names)} are served: {', '.join(names)}")
        return self.get(name if name is not None else names[0] if names else "")

    def declares(self, endpoint: str) -> bool:
        """A graph that is served declares an endpoint of this name."""
        return any(endpoint in servable.endpoints for servable in self.servables)

    @property
    def servables(self) -> list[Servable]:
        return [e.servable for e in self._entries.values() if e.servable is not None]

    @property
    def usable(self) -> list[Servable]:
        """Return the servables that the caller may use: a key limited to some graphs does not see others."""
        may = current_request().caller.may_use
        return [servable for servable in self.servables if may(servable.name)]

    @property
    def usable_statuses(self) -> list[ServableStatus]:
        may = current_request().caller.may_use
        return [status for status in self.statuses() if may(status.name)]

    def versions(self, name: str) -> list[str]:
        """Return the versions of a name that answer."""
        return [str(e.spec.version) for e in self._entries.of(name) if e.servable is not None]

    # -- what state they are in

    def statuses(self, name: str | None = None) -> list[ServableStatus]:
        """Return the statuses of one name or of all, ended ones included. Raises ModelNotFound. Only an
        administrator sees files and the machine."""
        name = name and self._entries.servable_of(self.aliases.target(name, self._entries.all_names))
        statuses = self._entries.statuses(name)
        return statuses if current_request().caller.rights.admin else [s.without_details for s in statuses]

    @property
    def ready(self) -> bool:
        """The first load is done, and something can answer if anything is to be served."""
        if self.stopping or not self._applied:
            return False
        return not any(e.listed for e in self._entries.values()) or any(
            s.state is State.AVAILABLE for s in self.servables
        )

    @property
    def engines(self) -> int:
        """Engine processes held, those of servables that are being retired included."""
        return len(self._rollout.engines)

    # -- changes

    async def reload(self) -> ReloadResult:
        """Raises LoadError when the configuration itself is wrong; nothing has changed then."""
        current_request().caller.require_admin()
        if self._reloading is None:
            log.info("reloading")
            self._reloading = self._changes.start(self._reload)
        return await self._changes.result(self._reloading)

    async def replace(self, specs: Iterable[ServableSpec]) -> ReloadResult:
        current_request().caller.require_admin()
        every = list(specs)
        return await self._changes.result(self._changes.start(lambda: self._replace(every)))

    async def load(self, name: str, where: ServableSpec | Path | None = None) -> Servable:
        """`where`: a specification, a graph directory, or None for what the configuration says of the name.

        Raises ModelNotFound, or LoadError; the version served before still is then. What is served already,
        unchanged, is left alone.
        """
        current_request().caller.require_admin()
        return await self._changes.result(self._changes.start(lambda: self._load(name, where)))

    async def unload(self, name: str) -> None:
        """Returns when new requests no longer get it. Raises ModelNotFound."""
        current_request().caller.require_admin()
        async with self._lock:
            listed = [entry for entry in self._entries.of(name) if entry.listed]
            if not listed:
                raise ModelNotFound(f"model {name!r} is not served", param="model")
            for entry in listed:
                self._rollout.unload(entry)
            log.info("%s is no longer served: unloaded on request", name)

    async def poll(self) -> ReloadResult | None:
        """Reload what has changed, once two polls in a row see the same. Called by the watcher.

        None when nothing was to be done. Raises LoadError once for each wrong state of the configuration.
        """
        if self._lock.locked():
            return None
        return await self._changes.result(self._changes.start(self._poll))

    # -- the end

    async def drain(self, seconds: float) -> None:
        """Wait until no request runs, `seconds` at most."""
        await self._rollout.drain(seconds, self.servables)

    def kill(self) -> None:
        """Have `stop` not wait for engines that do not listen."""
        self._rollout.engines.kill()

    async def stop(self) -> None:
        """Stop the engines; requests that still run end with an error."""
        await self._changes.stop()
        await self._rollout.stop()
        await self.bodies.stop()
        self._entries.clear()

    # -- parts of a change; all of them hold the lock

    async def _reload(self) -> ReloadResult:
        async with self._lock:
            self._reloading = None  # who asks from now on wants what is written from now on
            warnings = await self._read()
            return await self._apply(retry=True, warnings=warnings)

    async def _replace(self, specs: list[ServableSpec]) -> ReloadResult:
        async with self._lock:
            self._specs = {spec.key: spec for spec in specs}
            return await self._apply(retry=True)

    async def _load(self, name: str, where: ServableSpec | Path | None) -> Servable:
        async with self._lock:
            if where is None:
                specs = await self._described(name)
            else:
                specs = [where if isinstance(where, ServableSpec) else ServableSpec.of_directory(name, where)]
            others = {key: spec for key, spec in self._specs.items() if spec.name != name}
            self._specs = others | {spec.key: spec for spec in specs}
            await self._rollout.apply(specs, retry=True, only=name)
            self._applied = True
        for entry in self._entries.of(name):
            if entry.listed and entry.error is not None:
                raise entry.error
        return self.get(name)

    async def _poll(self) -> ReloadResult | None:
        async with self._lock:
            digest = await self._configuration_digest()
            desired = await self._rollout.look(list(self._specs.values()))
            if digest == self._digest and not self._rollout.plan(desired, retry=False):
                self._seen = None
                return None
            previous, self._seen = self._seen, (digest, desired)
            if previous != self._seen:
                return None
            if digest != self._digest:
                await self._read()
            return await self._apply(retry=False)

    async def _read(self) -> tuple[str, ...]:
        """The specifications anew; warnings."""
        if self._repository is None:
            return ()
        self._digest = await self._configuration_digest()
        try:
            repository = await asyncio.to_thread(self._read_repository)
        except LoadError as error:
            self.reloads["invalid"] += 1
            self.fault = str(error)
            log.error("the configuration is not used: %s", error)
            raise
        self.fault = ""
        self._specs = {spec.key: spec for spec in repository.specs}
        warnings = (*repository.warnings, *self.aliases.faults({spec.name for spec in repository.specs}))
        for warning in warnings:
            log.warning("%s", warning)
        return warnings

    def _read_repository(self) -> RepositoryContent:
        """Read the repository. Raises LoadError, also for storage that has gone."""
        assert self._repository is not None
        try:
            repository = self._repository.read()
        except OSError as error:
            raise LoadError(f"cannot be read: {error}") from error
        if isinstance(self._repository, GraphsDirectory) and self._specs and not repository.specs:
            raise LoadError(f"{self._repository.path} is empty now; what it held is still served")
        return repository

    async def _described(self, name: str) -> list[ServableSpec]:
        specs: list[ServableSpec] = []
        if self._repository is not None:
            repository = await asyncio.to_thread(self._read_repository)
            specs = [spec for spec in repository.specs if spec.name == name]
        specs = specs or [spec for spec in self._specs.values() if spec.name == name]
        if not specs:
            raise ModelNotFound(f"model {name!r} is not in the configuration", param="model")
        return specs

    async def _configuration_digest(self) -> str:
        if self._repository is None:
            return ""
        try:
            return await asyncio.to_thread(self._repository.digest)
        except OSError as error:
            return f"unreadable: {error}"

    async def _apply(self, *, retry: bool, warnings: tuple[str, ...] = ()) -> ReloadResult:
        result = await self._rollout.apply(list(self._specs.values()), retry=retry)
        self._applied = True
        self.reloads[result.outcome] += 1
        return replace(result, warnings=warnings)

    def _listed(self) -> list[str]:
        """Return the names that the caller may know of."""
        return list(filter(current_request().caller.may_use, self._entries.all_names()))


class Reloads:
    """Reloads without a network call: by the watcher, every --file_system_poll_wait_seconds, and by SIGHUP.

    That is handled from the start, because it would end the process; a reload waits for the first load.
    """

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._tasks: set[asyncio.Task[None]] = set()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._on_hangup)

    def start(self, poll_seconds: float) -> None:
        """Start to watch; 0 seconds: never."""
        if poll_seconds > 0:
            self._begin(self._watch(poll_seconds))

    async def stop(self) -> None:
        """Stop watching. The manager ends a running reload. SIGHUP has no effect from now on."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lambda: None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_hangup(self) -> None:
        log.info("reloading: SIGHUP")
        self._begin(_logged(self._manager.reload))

    async def _watch(self, seconds: float) -> None:
        """Each poll is a task of its own: one that fails unexpectedly is logged, and the next one follows."""
        while True:
            await asyncio.sleep(seconds)
            await asyncio.wait({self._begin(_logged(self._manager.poll))})

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a reload by watcher or SIGHUP failed unexpectedly", exc_info=error)


async def _logged(reload: Callable[[], Awaitable[ReloadResult | None]]) -> None:
    """Run a reload; its errors are already in the log and in the states.

    Called here, because a task cancelled before its first step never awaits a coroutine it was given.
    """
    try:
        with as_system():
            await reload()
    except LoadError:
        return
