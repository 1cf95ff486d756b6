"""Bring a desired set of servables into service: check, load, swap, retire. One change runs at a time.

Everything is read and every graph is checked first. Then each servable is loaded while the
current one of its name serves, and replaces it by one assignment. The old one keeps its running requests, and
ends when they are done or `drain_seconds` are over. A failure changes nothing but a status. Where memory
does not hold both, or with `replace_first`, the old one is drained and ended before the new one is loaded;
requests get "loading" meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from ovserve.engine.client.spare import Spare
from ovserve.engine.protocol.specs import Spec, with_cache
from ovserve.errors import OvserveError, as_load_error
from ovserve.graph import Registry
from ovserve.sandbox.bodies import Bodies
from ovserve.sandbox.images.loader import Media
from ovserve.sandbox.templates import Templates
from ovserve.serving.config.models import looks_plain
from ovserve.serving.engines import Engines, Key
from ovserve.serving.entries import Entries, Entry, Phase
from ovserve.serving.fingerprint import Fingerprints
from ovserve.serving.loader import Checked, check, listed_with_adapters, load_servable, model_paths
from ovserve.serving.plan import Desired, Plan, diff
from ovserve.serving.residency import Residency
from ovserve.serving.servable import Servable
from ovserve.serving.sessions import ServedModels
from ovserve.serving.settings import ServableSpec, ServingSettings
from ovserve.serving.status import ReloadResult
from ovserve.telemetry.metrics import Metrics

PROGRESS_SECONDS = 10.0  # between two lines of the log while a model loads

log = logging.getLogger(__name__)


async def _progress(name: str, began: float, most: float) -> None:
    """Log that a load goes on, until cancelled; how far it is cannot be known."""
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        log.info("still loading %s: %.0f s so far, %g at most", name, time.monotonic() - began, most)


class Rollout:
    """Applies changes to `entries`, which belong to the manager: every name ever served, and its current
    servable."""

    def __init__(
        self,
        registry: Registry,
        settings: ServingSettings,
        entries: Entries,
        metrics: Metrics,
        media: Media,
        bodies: Bodies,
        spare: Spare | None = None,
    ) -> None:
        self._metrics = metrics
        self._registry = registry
        self._settings = settings
        self._entries = entries
        self._models = ServedModels(entries)
        self._fingerprints = Fingerprints()
        self._retiring: dict[asyncio.Task[None], Servable] = {}
        self._templates = Templates()
        self._media = media
        self._bodies = bodies
        self.engines = Engines(settings.engines, spare, settings.memory, settings.convert)
        self._residency = Residency(entries, settings.idle, metrics)

    async def look(self, specs: Sequence[ServableSpec]) -> dict[str, Desired]:
        """Return the specifications with the digests of their files."""
        return await asyncio.to_thread(lambda: self._look(listed_with_adapters(self._with_places(specs))))

    def _with_places(self, specs: Sequence[ServableSpec]) -> list[ServableSpec]:
        """Return the specifications, with those that are served in the place of a path that has gone.

        They go on answering from memory, and their state says what is absent. Without its files, a plain
        model looks like a graph. One that is there and has no `model` is an entry with a wrong option.
        """
        expanded = []
        for spec in specs:
            gone = _has_gone(spec)
            served = [e.active[0] for e in self._entries.of(spec.name) if gone and e.active and e.servable]
            there = [s for s in served if s.plain and spec.base in (s.base, s.base.parent)]
            expanded += there or [spec]
        return expanded

    def plan(self, desired: Mapping[str, Desired], *, retry: bool, only: str | None = None) -> Plan:
        current = {key: e.current for key, e in self._entries.items() if only in (None, e.name)}
        plan = diff(current, desired, retry=retry)
        return replace(plan, remove=tuple(key for key in plan.remove if not self._needed(key, desired)))

    def _needed(self, key: str, desired: Mapping[str, Desired]) -> bool:
        """Return whether this version answers, and none that is wanted of its name does so yet."""
        old = self._entries[key]
        if old.servable is None:
            return False
        newer = [s.key for s, _ in desired.values() if s.name == old.name]
        return bool(newer) and all((e := self._entries.get(k)) is None or e.servable is None for k in newer)

    async def apply(
        self, specs: Sequence[ServableSpec], *, retry: bool, only: str | None = None
    ) -> ReloadResult:
        """Apply the specifications: these and no others; or, with one name, only that one."""
        plan = self.plan(desired := await self.look(specs), retry=retry, only=only)
        for name in plan.load:
            self._entries.begin(desired[name][0], Phase.WAITING)
        for name in plan.clear_error:
            self._entries[name].clear_error()
        prepared = [p for name in plan.load if (p := await self._prepare(self._entries[name])) is not None]
        shared = {key for p in prepared for key in p.keys.values()}
        later = await self._take_out(plan.remove, shared, first=await self._ends_first(shared))
        await self.engines.expect(key[0] for one in prepared for key in one.keys.values())
        for plain in (True, False):  # graphs may use plain models, and are checked against them
            await self._bring_all([p for p in prepared if p.entry.spec.plain is plain])
        # Older versions of a plain model answered until now.
        older = self.plan(desired, retry=False, only=only).remove
        later += await self._take_out(older, shared, first=self._settings.replace_first)
        for entry, old in later:  # not before: a renamed servable takes over the engine
            self._retire(old, entry)
        failed = {n: str(e) for n in plan.load if (e := self._entries[n].error) is not None}
        updated = [n for n in (*plan.load, *plan.clear_error) if n not in failed]
        return ReloadResult(
            tuple(map(self._label, updated)),
            tuple(map(self._label, (*plan.remove, *older))),
            {self._label(n): why for n, why in failed.items()},
        )

    def _label(self, key: str) -> str:
        return self._entries[key].spec.label

    async def _prepare(self, entry: Entry) -> _Prepared | None:
        """Check everything that needs no engine; None, with the entry failed, if it is wrong."""
        paths = await asyncio.to_thread(model_paths, entry.spec)
        desired = (entry.spec, await asyncio.to_thread(self._fingerprints.of, entry.spec, paths))
        try:
            # In a thread: a graph's calculators.py may import for seconds, and other requests stream.
            checked = await asyncio.to_thread(check, entry.spec, self._registry)
        except Exception as error:  # noqa: BLE001  reported in _failed
            self._failed(entry, error, desired)
            return None
        keys = await asyncio.to_thread(self._keys, checked.engine_specs)
        return _Prepared(entry, checked, desired, keys)

    async def _ends_first(self, keys: Iterable[Key]) -> bool:
        """Return whether what is no longer served has to end before engines of these keys are loaded."""
        new = [key for key in keys if not self.engines.has(key)]
        return self._settings.replace_first or bool(await asyncio.to_thread(self.engines.memory_fault, new))

    async def _take_out(
        self, names: Iterable[str], shared: set[Key], *, first: bool = False
    ) -> list[tuple[Entry, Servable | None]]:
        """Take names out of service at once; return what is still to be retired. `first`: end them now."""
        later = []
        for name in names:
            entry = self._entries[name]
            at_once = first and not (entry.keys & shared)
            old = entry.unload(Phase.RETIRING)
            log.info("%s is no longer served: it is not in the configuration", entry.spec.label)
            if at_once and old is not None:
                await self._end(old)
                entry.ended()
            else:
                later.append((entry, old))
        return later

    async def _bring_all(self, prepared: Sequence[_Prepared]) -> None:
        """Load small models at once, so that one that hangs holds up no other, and large ones in turn."""
        async with asyncio.TaskGroup() as group:
            for one in prepared:
                if one.small:
                    group.create_task(self._bring(one), name=f"load {one.entry.name}")
            for one in prepared:
                if not one.small:
                    await self._bring(one)

    async def _bring(self, new: _Prepared) -> None:
        entry, keys = new.entry, frozenset(new.keys.values())
        began = time.monotonic()
        if not keys <= entry.keys and await self._in_place(entry, keys):
            old = entry.unload(Phase.LOADING)
            if old is not None:
                await self._end(old)
        entry.begin(entry.spec, Phase.LOADING)
        log.info("loading %s", entry.spec.label)
        progress = asyncio.create_task(
            _progress(entry.spec.label, began, self._settings.engines.ready_timeout)
        )
        try:
            async with self._residency.wait_for_room(
                entry.spec, [k for k in keys if not self.engines.has(k)]
            ):
                servable = await load_servable(
                    new.checked,
                    self.engines,
                    new.keys,
                    self._templates,
                    self._media,
                    self._bodies,
                    self._metrics.of(entry.name),
                    self._settings.limits,
                    self._models,
                )
        except Exception as error:  # noqa: BLE001  reported in _failed
            self._failed(entry, error, new.desired)
            return
        finally:
            progress.cancel()
        self._retire(entry.swap(servable, new.desired, keys))
        self._residency.notify()
        again = f", revision {entry.revision}" if entry.revision > 1 else ""
        log.info("%s is served, loaded in %.1f s%s", entry.spec.label, time.monotonic() - began, again)

    async def _in_place(self, entry: Entry, keys: frozenset[Key]) -> bool:
        """Return whether the served version has to end before the new one is loaded. It stays where not even
        that would make room."""
        if entry.servable is None or self._settings.replace_first:
            return entry.servable is not None
        new = [key for key in keys if not self.engines.has(key)]
        fault = await asyncio.to_thread(self.engines.memory_fault, new)
        if not fault:
            return False
        given_back = self.engines.given_back(entry.servable.engines.values(), keys)
        if await asyncio.to_thread(self.engines.memory_fault, new, given_back):
            return False
        numbers, _, _ = fault.partition(";")
        log.warning(
            "%s: memory does not hold both versions (%s); the old one finishes its requests, %g s at most, "
            "and ends before the new one is loaded", entry.spec.label, numbers, self._settings.drain_seconds,
        )  # fmt: skip
        return True

    def _failed(self, entry: Entry, error: Exception, desired: Desired) -> None:
        """Record a failed load. Whatever one servable's graph and calculators raise, the others go on."""
        if not isinstance(error, OvserveError):
            log.error("unexpected while loading %s", entry.spec.label, exc_info=error)
        error = as_load_error(error, str(entry.spec.graph))
        entry.fail(error, desired)
        still = "; the previous version is still served" if entry.servable is not None else ""
        log.error("%s was not loaded: %s%s", entry.spec.label, error, still)

    def _keys(self, specs: Mapping[str, Spec]) -> dict[str, Key]:
        """Return the engine key of each side packet: its specification, and the digest of its model files."""
        cached = {packet: with_cache(spec, self._settings.cache_dir) for packet, spec in specs.items()}
        digest = self._fingerprints.model
        return {packet: (s, " ".join(map(digest, s.model_paths))) for packet, s in cached.items()}

    def unload(self, entry: Entry) -> None:
        """Unload on request; new requests no longer reach it when this returns."""
        self._retire(entry.unload(Phase.RETIRING, unloaded=True), entry)

    async def drain(self, seconds: float, serving: Iterable[Servable]) -> None:
        """Wait until no request runs, `seconds` at most."""
        servables = [*serving, *self._retiring.values()]
        try:
            async with asyncio.timeout(seconds):
                for servable in servables:
                    await servable.idle.wait()
        except TimeoutError:
            running = sum(s.running for s in servables)
            log.warning("%d requests still run after %g s; ending them", running, seconds)
        for servable in servables:
            servable.ended = True

    async def stop(self) -> None:
        """Stop the engines; requests that still run end with an error."""
        retiring = list(self._retiring.values())
        tasks = list(self._retiring)
        await self._residency.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        serving = [e.servable for e in self._entries.values() if e.servable is not None]
        for servable in (*serving, *retiring):
            servable.graph.close()
        await self.engines.close()
        await self._templates.stop()
        await self._media.stop()

    def _look(self, specs: Sequence[ServableSpec]) -> dict[str, Desired]:
        watched = {key: entry.watched for key, entry in self._entries.items()}
        return {s.key: (s, self._fingerprints.of(s, watched.get(s.key, ()))) for s in specs}

    def _retire(self, old: Servable | None, entry: Entry | None = None) -> None:
        """Retire it in the background: let it finish, then stop it."""
        if old is None:
            if entry is not None:
                entry.ended()
            return

        async def end() -> None:
            await self._end(old)
            if entry is not None:
                entry.ended()

        task = asyncio.create_task(end(), name=f"retire {old.name}")
        self._retiring[task] = old
        task.add_done_callback(self._retired)

    def _retired(self, task: asyncio.Task[None]) -> None:
        del self._retiring[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("retiring a servable failed", exc_info=error)

    async def _end(self, old: Servable) -> None:
        try:
            async with asyncio.timeout(self._settings.drain_seconds):
                await old.idle.wait()
        except TimeoutError:
            log.warning(
                "%s: %d requests still run on the replaced version after %g s; ending them",
                old.name, old.running, self._settings.drain_seconds,
            )  # fmt: skip
        await old.stop()


def _has_gone(spec: ServableSpec) -> bool:
    """Return whether there is nothing to serve at its path, or its storage does not answer."""
    try:
        return not (spec.model or spec.text or spec.graph.is_file() or looks_plain(spec.base))
    except OSError:
        return True


class _Prepared(msgspec.Struct, frozen=True):
    entry: Entry
    checked: Checked
    desired: Desired
    keys: Mapping[str, Key]  # by side packet

    @property
    def small(self) -> bool:
        """Return whether all of its engines share a process with others."""
        return all(spec.hosted for spec, _ in self.keys.values())
