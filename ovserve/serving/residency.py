"""The residency of graphs: which are loaded, where idle ones are unloaded or memory holds only some.

Graphs are loaded and unloaded in groups, as in OVMS's preview of idle management. A group that
had no request for its idle time is unloaded. A request for an unloaded graph puts its group into a queue,
first come, first served. The first of the queue is loaded once there is room for it. To make room, the group
that was idle longest is evicted or, where all have work, the one that was loaded first: it takes no new
requests, finishes those that its engines have, and is unloaded; requests that still wait for it queue again.
So each group waits for one turn of the others at most. A group stays loaded for at least `residence` seconds,
so that loads take a bounded share of the time.

One task decides, at each change and when a time is up. It changes nothing while no group has an idle time
and there is no limit.

Names of groups are those of the configuration: `group_name`, or the graph's own. Graphs that share an engine
are in one group whatever they are called, because the engine is loaded for all of them or for none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ovserve.engine.client.spare import Spare
from ovserve.engine.host.memory import memory
from ovserve.serving.engines import AnyEngine, Key
from ovserve.serving.entries import Entries, Entry
from ovserve.serving.model_size import loaded_bytes
from ovserve.serving.settings import IdleSettings, ServableSpec
from ovserve.telemetry.metrics import IDLE, ROOM, Metrics

log = logging.getLogger(__name__)

PERMANENT = "permanent"


@dataclass(eq=False)
class Group:
    """`idle_seconds` after the last request it is unloaded; 0: never for that reason."""

    name: str  # the first of its labels
    labels: set[str]  # more than one if groups of the configuration share an engine
    engines: list[AnyEngine]
    names: list[str]  # of its servables
    idle_seconds: float

    @property
    def permanent(self) -> bool:
        return PERMANENT in self.labels

    @property
    def asleep(self) -> list[AnyEngine]:
        return [engine for engine in self.engines if engine.dormancy.asleep]

    @property
    def loaded(self) -> list[AnyEngine]:
        """Return the engines that have a process, or are about to have one again."""
        return [engine for engine in self.engines if not engine.dormancy.asleep]

    @property
    def has_requests(self) -> bool:
        """Return whether a request waits for an engine of it that is not loaded."""
        return any(engine.dormancy.waiting for engine in self.asleep)

    @property
    def urgent(self) -> bool:
        return any(engine.dormancy.urgent for engine in self.asleep)

    @property
    def settled(self) -> bool:
        """Return whether none of its engines is being loaded."""
        return all(engine.state.name in ("ready", "failed", "unloaded") for engine in self.engines)

    @property
    def failed(self) -> bool:
        return any(engine.state.name == "failed" for engine in self.engines)

    @property
    def busy(self) -> bool:
        return any(engine.busy for engine in self.engines)

    @property
    def working(self) -> bool:
        """Return whether a request holds it, or waits for it."""
        return self.busy or any(e.expected or e.reserved or e.dormancy.waiting for e in self.engines)

    @property
    def last_used(self) -> float:
        """Return the time of the last request, `time.monotonic()`; -inf: never."""
        return max(engine.dormancy.last_used for engine in self.engines)

    @property
    def since(self) -> float:
        """Return when it was loaded."""
        return max(engine.dormancy.since for engine in self.engines)

    @property
    def idle_since(self) -> float:
        return max(self.last_used, self.since)

    @property
    def bytes(self) -> int:
        """Return the memory that it holds; an unloaded one: that it will hold."""
        return sum(
            # A shared process reports the memory of all its models.
            (0 if engine.spec.hosted else engine.memory_held) or engine.dormancy.bytes
            for engine in self.engines
        )


def groups_of(entries: Iterable[Entry], settings: IdleSettings) -> list[Group]:
    """Return the groups of all servables that have engines."""
    groups: list[Group] = []
    for entry in entries:
        if entry.servable is None or not entry.servable.engines:
            continue
        engines, label = list(dict.fromkeys(entry.servable.engines.values())), group_name(entry.spec)
        new = Group(label, {label}, engines, [entry.name], idle_seconds(entry.spec, settings))
        for group in [g for g in groups if label in g.labels or not set(g.engines).isdisjoint(engines)]:
            groups.remove(group)
            new = _union(group, new)
        groups.append(new)
    return groups


def _union(one: Group, other: Group) -> Group:
    engines = list(dict.fromkeys([*one.engines, *other.engines]))
    never = 0.0 in (one.idle_seconds, other.idle_seconds)
    idle = 0.0 if never else max(one.idle_seconds, other.idle_seconds)
    return Group(one.name, one.labels | other.labels, engines, one.names + other.names, idle)


def group_name(spec: ServableSpec) -> str:
    return spec.group or spec.name


def idle_seconds(spec: ServableSpec, settings: IdleSettings) -> float:
    """Return the idle time of a graph; an adapter has one of its own where nothing else is set."""
    if spec.idle_seconds is not None:
        return spec.idle_seconds
    if spec.adapter is not None and not settings.seconds:
        return settings.adapter_seconds
    return settings.seconds


MIN_IDLE_SECONDS = 1.0  # without a request, after which a group may be evicted as idle
POLL_SECONDS = 0.05  # between two decisions while a group waits for room
LOAD_WAIT_SECONDS = 60.0  # that the load of a new graph waits for room
RESERVE_BYTES = 256 << 20  # bytes of memory that stay free where there is no other limit


@dataclass(eq=False)
class LoadRequest:
    """A request to load a group, or a graph for the first time."""

    name: str
    bytes: int
    group: Group | None = None
    requested_at: float = field(default_factory=time.monotonic)
    granted: asyncio.Event = field(default_factory=asyncio.Event)


class Residency:
    def __init__(self, entries: Entries, settings: IdleSettings, metrics: Metrics) -> None:
        self._entries, self._settings, self._metrics = entries, settings, metrics
        self._queue: dict[str, LoadRequest] = {}  # groups with waiting requests, by name
        self._loading: list[LoadRequest] = []  # graphs that are loaded for the first time
        self._tasks: dict[str, asyncio.Task[None]] = {}  # groups that are being loaded or unloaded
        self._held: set[AnyEngine] = set()
        self._managed: set[AnyEngine] = set()
        self._changed = asyncio.Event()
        self._spare = Spare()
        self._running: asyncio.Task[None] | None = None

    def notify(self) -> None:
        """Trigger a decision: what is served has changed, or a request needs an engine."""
        self._changed.set()
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="residency of graphs")

    async def stop(self) -> None:
        tasks = [*self._tasks.values(), *([self._running] if self._running is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._spare.end()

    @asynccontextmanager
    async def wait_for_room(self, spec: ServableSpec, keys: Sequence[Key]) -> AsyncIterator[None]:
        """Enter around a load, with the keys of engines that start; wait up to LOAD_WAIT_SECONDS for room."""
        if not (self._settings.enabled and keys) or spec.on_demand:
            yield
            return
        sizes = await asyncio.to_thread(lambda: [loaded_bytes(key[0]) for key in keys])
        request = LoadRequest(group_name(spec), sum(sizes))
        self._loading.append(request)
        self.notify()
        try:
            try:
                async with asyncio.timeout(LOAD_WAIT_SECONDS):
                    await request.granted.wait()
            except TimeoutError:
                log.warning("%s is loaded although there is no room for it", spec.label)
                request.granted.set()
            yield
        finally:
            self._loading.remove(request)
            self.notify()

    def estimate(self, engine: AnyEngine) -> float:
        """Return the seconds until an engine that is not loaded can answer."""
        groups_before = sum(
            1
            for request in self._queue.values()
            if request.group is None or engine not in request.group.engines
        )
        full = bool(self._settings.max_groups or self._settings.max_bytes)
        return engine.dormancy.seconds + (groups_before * self._settings.residence if full else 0.0)

    # ---- decisions

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            try:
                wait = self._decide(time.monotonic())
            except Exception:  # a fault here must not leave requests waiting for ever
                log.exception("the residency of graphs could not be decided")
                wait = 1.0
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()

    def _decide(self, now: float) -> float | None:
        """Begin what is to be done now; return the seconds after which to look again, None: at a change."""
        groups = groups_of(self._entries.values(), self._settings)
        self._manage(groups)
        self._enqueue_waiting(groups, now)
        victims = self._serve_queue(groups, now)
        self._hold(victims)
        for group in victims:
            if not group.busy:
                self._unload(group, ROOM)
        self._unload_idle(groups, now)
        # Not during a load, whose processor time it would take, unless a group waits for room anyway.
        if (self._queue or not self._tasks) and any(_uses_spare(e) for g in groups for e in g.asleep):
            self._spare.prepare()
        if self._queue or self._loading or victims:
            return POLL_SECONDS
        ends = [
            g.idle_since + g.idle_seconds - now
            for g in groups
            if g.idle_seconds and g.loaded and not g.permanent
        ]
        return max(POLL_SECONDS, min(ends)) if ends else None

    def _manage(self, groups: Iterable[Group]) -> None:
        """Set which engines are loaded on demand; wake those that no servable has any more."""
        engines = {engine for group in groups for engine in group.engines}
        on_demand = {e for g in groups for e in g.engines if self._settings.enabled or g.idle_seconds}
        for engine in engines - self._managed:
            engine.dormancy.on_request = self.notify
            engine.dormancy.estimate = partial(self.estimate, engine)
        for engine in engines:
            engine.dormancy.managed = engine in on_demand
        for engine in self._managed - engines:
            engine.hold(False)
            if engine.dormancy.waiting:
                engine.wake()
        gone = self._managed - engines
        self._managed = engines | {e for e in gone if e.dormancy.asleep and e.state.name != "stopped"}

    def _enqueue_waiting(self, groups: Iterable[Group], now: float) -> None:
        """Put groups that requests wait for into the queue, and take out those whose clients have left."""
        waiting_groups = {g.name: g for g in groups if g.has_requests and g.name not in self._tasks}
        for name in self._queue.keys() - waiting_groups.keys():
            del self._queue[name]
        for name, group in waiting_groups.items():
            request = self._queue.setdefault(name, LoadRequest(name, 0, requested_at=now))
            request.group, request.bytes = group, group.bytes

    def _serve_queue(self, groups: list[Group], now: float) -> list[Group]:
        """Grant load requests in turn; return the group to evict for the first one without room."""
        waiting = [p for p in (*self._queue.values(), *self._loading) if not p.granted.is_set()]
        for request in sorted(waiting, key=lambda request: (not _urgent(request), request.requested_at)):
            if not (_urgent(request) or self._has_room(request, groups)):
                victim = self._victim(request, groups, now)
                return [] if victim is None else [victim]
            request.granted.set()
            if request.group is not None:
                del self._queue[request.name]
                self._begin(request.group, self._load(request.group))
        return []

    def _has_room(self, request: LoadRequest, groups: list[Group]) -> bool:
        settings = self._settings
        resident = [g for g in groups if g.loaded or g.name in self._tasks]
        granted = [p for p in self._loading if p.granted.is_set() and p is not request]
        if any(g.name == request.name for g in resident) or request.name == PERMANENT:
            return True
        others = {g.name for g in resident if not g.permanent} | {p.name for p in granted}
        if not others:
            return True
        if settings.max_groups and len(others) >= settings.max_groups:
            return False
        if settings.max_bytes:
            held = sum(g.bytes for g in resident) + sum(p.bytes for p in granted)
            return held + request.bytes <= settings.max_bytes
        if settings.max_groups:
            return True
        available = memory().available
        return not available or available - RESERVE_BYTES >= request.bytes + sum(p.bytes for p in granted)

    def _victim(self, request: LoadRequest, groups: list[Group], now: float) -> Group | None:
        """Return the group to evict; None: each has to stay a little longer."""
        if any(
            task for name, task in self._tasks.items() if name in {g.name for g in groups if not g.loaded}
        ):
            return None  # one is being unloaded
        candidates = [g for g in groups if g.loaded and not g.permanent and g.name not in self._tasks]
        candidates = [g for g in candidates if g.settled and g.name != request.name]
        min_idle = min(MIN_IDLE_SECONDS, self._settings.residence)
        if idle := [g for g in candidates if not g.working and now - g.last_used >= min_idle]:
            return min(idle, key=lambda group: group.last_used)
        evictable = [g for g in candidates if now - g.since >= self._settings.residence]
        return min(evictable, key=lambda group: group.since, default=None)

    def _hold(self, victims: Iterable[Group]) -> None:
        held = {engine for group in victims for engine in group.engines}
        for engine in self._held - held:
            engine.hold(False)
        for engine in held:
            engine.hold(True)
        self._held = held

    def _unload_idle(self, groups: Iterable[Group], now: float) -> None:
        for group in groups:
            if group.permanent or not group.idle_seconds or not group.loaded or group.name in self._tasks:
                continue
            # One that has failed stays visible, and is tried again all the time.
            if (
                group.settled
                and not (group.failed or group.working)
                and now - group.idle_since >= group.idle_seconds
            ):
                self._unload(group, IDLE)

    # ---- what is begun

    def _unload(self, group: Group, cause: str) -> None:
        log.info(
            "unloading %s: %s", group.name, "another graph needs its place" if cause == ROOM else "it is idle"
        )
        for name in group.names:
            self._metrics.of(name).unloads[cause] += 1
        self._begin(group, _sleep(group.loaded))

    async def _load(self, group: Group) -> None:
        """Load what is not loaded of a group: what requests wait for first, large models in turn."""
        log.info("loading %s on demand", group.name)
        absent = sorted(group.asleep, key=lambda engine: -engine.dormancy.waiting)
        async with asyncio.TaskGroup() as tasks:
            for engine in absent:
                if engine.spec.hosted:
                    tasks.create_task(self._wake(engine, group))
            for engine in absent:
                if not engine.spec.hosted:
                    await self._wake(engine, group)

    async def _wake(self, engine: AnyEngine, group: Group) -> None:
        began = time.monotonic()
        engine.wake(self._spare if _uses_spare(engine) else None)
        await engine.settled()
        if engine.state.name == "ready":
            engine.dormancy.seconds = seconds = time.monotonic() - began
            for entry in self._entries.values():
                if entry.servable is not None and engine in entry.servable.engines.values():
                    self._metrics.of(entry.name).wakes.observe(seconds)
            log.info("%s: loaded again in %.2f s", ", ".join(group.names), seconds)

    def _begin(self, group: Group, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"residency of {group.name}")
        self._tasks[group.name] = task

        def ended(task: asyncio.Task[None]) -> None:
            del self._tasks[group.name]
            self._changed.set()
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("%s could not be loaded or unloaded", group.name, exc_info=error)

        task.add_done_callback(ended)


async def _sleep(engines: Iterable[AnyEngine]) -> None:
    await asyncio.gather(*(engine.sleep() for engine in engines))


def _uses_spare(engine: AnyEngine) -> bool:
    return engine.spec.prewarmed and not engine.spec.hosted and not engine.spec.python


def _urgent(request: LoadRequest) -> bool:
    return request.group is not None and request.group.urgent
