"""The engines of all servables, shared by those with the same specification.

Two graphs over one model, or two versions of a graph that differ in nodes or parsers only, have equal engine
specifications over equal model files. They get the same process: weights are in memory once, and such a
reload costs milliseconds. An engine ends when the last servable that acquired it has released it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ovserve.engine.client.client import EngineClient
from ovserve.engine.client.hosts import Hosts
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.client.spare import Spare
from ovserve.engine.client.text import TextClient
from ovserve.engine.host.memory import Memory, memory
from ovserve.engine.model.lora import unusable
from ovserve.engine.protocol.specs import Spec, TextSpec
from ovserve.errors import LoadError, OvserveError
from ovserve.kinds.resource import client_of
from ovserve.serving.model_size import loaded_bytes, memory_fault
from ovserve.serving.settings import Convert

log = logging.getLogger(__name__)

FIELD = "engine"  # of the options of a graph
AnyEngine = EngineClient[Any, Any]
S = TypeVar("S", bound=Spec)
Key = tuple[Spec, str]  # the specification, and a digest of the model files it names


async def convert_spec(spec: S, convert: Convert | None) -> S:
    """Return the specification with the directory that its .gguf file is converted to, if its engine needs
    that.

    Raises LoadError with the field `engine`, because another engine may be able to read the file.
    """
    if not spec.converts:
        return spec
    if convert is None:
        raise LoadError("a .gguf file is not converted here", file=spec.model_path, field=FIELD)
    try:
        directory = await asyncio.to_thread(convert, Path(spec.model_path))
    except OvserveError as error:
        raise LoadError(f"not converted: {error}", file=spec.model_path, field=FIELD) from error
    return msgspec.structs.replace(spec, model_path=str(directory))


class Engines:
    """Engines by key."""

    def __init__(
        self,
        settings: EngineSettings,
        spare: Spare | None = None,
        memory: Callable[[], Memory] = memory,
        convert: Convert | None = None,
    ) -> None:
        """`spare` is for the first engine that starts. `memory` returns what is left. `convert` returns
        the directory with what a .gguf file is converted to."""
        self._settings = settings
        self._memory = memory
        self._convert = convert
        self._converting = asyncio.Lock()
        self.ready_timeout = settings.ready_timeout  # seconds; nodes have as long for their load()
        self._spare = spare
        self._hosts = Hosts(settings)
        self._newest: dict[Key, AnyEngine] = {}
        self._users: Counter[AnyEngine] = Counter()
        self._ending: set[asyncio.Task[None]] = set()
        self._loading: dict[Key, asyncio.Lock] = {}
        self._fallbacks: dict[Key, Key] = {}  # of engines that cannot serve their model
        self._conversions: dict[Key, Key] = {}  # of .gguf files

    def __len__(self) -> int:
        return len(self._users)

    def has(self, key: Key) -> bool:
        """Return whether it would be shared rather than started."""
        return self._is_loaded(self._served_by(key))

    def _served_by(self, key: Key) -> Key:
        return self._conversions.get(key) or self._fallbacks.get(key, key)

    def _is_loaded(self, key: Key) -> bool:
        engine = self._newest.get(key)
        return engine is not None and engine.state.name not in ("failed", "stopped")

    async def acquire(self, key: Key, *, on_demand: bool = False, fallback: Spec | None = None) -> AnyEngine:
        """Return the engine, started if needed. A failed one is not reused. Raises LoadError if it does not
        load.

        With `on_demand`, one that differs from a loaded one by an adapter alone is started by its first
        request. `fallback` takes the place of an engine whose error names the field `engine`.
        """
        if fallback is not None and (other := self._fallbacks.get(key)) is not None:
            return await self._acquire(other, on_demand=on_demand)
        try:
            return await self._acquire(await self._convert_key(key), on_demand=on_demand)
        except LoadError as error:
            if fallback is None or error.field != FIELD:
                raise
            spec, digest = key
            log.warning("%s: OpenVINO GenAI's engine is used: %s", spec.model_path, error.reason)
            # Properties of the server, such as a cache directory, are in the key alone.
            self._fallbacks[key] = (msgspec.structs.replace(fallback, properties=spec.properties), digest)
            return await self._acquire(self._fallbacks[key], on_demand=on_demand)

    async def _convert_key(self, key: Key) -> Key:
        """Return the key of the engine that serves it; raises as `convert_spec`, and where memory lacks."""
        spec, digest = key
        if not spec.converts:
            return key
        async with self._converting:
            if (conversion := self._conversions.get(key)) is not None and self._is_loaded(conversion):
                return conversion
            if fault := await asyncio.to_thread(self.memory_fault, [key]):
                raise LoadError(fault, file=spec.model_path)
            self._conversions[key] = (await convert_spec(spec, self._convert), digest)
            return self._conversions[key]

    async def _acquire(self, key: Key, *, on_demand: bool) -> AnyEngine:
        async with self._loading.setdefault(key, asyncio.Lock()):
            if not self._is_loaded(key):
                engine = client_of(key[0], self._settings, self._hosts)
                if not on_demand and (fault := await asyncio.to_thread(self.memory_fault, [key])):
                    raise LoadError(fault, file=key[0].model_path)
                if not on_demand or not await self._rest(engine):
                    await engine.launch(self._spare if key[0].prewarmed else None)
                self._newest[key] = engine
            engine = self._newest[key]
            self._users[engine] += 1
            return engine

    def memory_fault(self, keys: Iterable[Key], given_back: int = 0) -> str:
        """Return why engines of these keys would fill the memory. `given_back`: bytes that others give back
        before."""
        memory, before = self._memory(), 0
        for spec, _ in keys:
            available = max(1, memory.available + given_back - before) if memory.available else 0
            if fault := memory_fault(
                spec, Memory(available, memory.limit), self._settings.restarts.memory_limit
            ):
                return fault
            before += loaded_bytes(spec)
        return ""

    def given_back(self, engines: Iterable[AnyEngine], keys: Iterable[Key]) -> int:
        """Return the bytes that engines hold of which only one servable is left, and none of these keys."""
        others = {self._newest.get(self._served_by(key)) for key in keys}
        return sum(
            e.memory_held for e in engines if self._users[e] == 1 and e not in others and not e.spec.hosted
        )

    async def _rest(self, engine: AnyEngine) -> bool:
        """Have the engine wait for its first request, if all about it is known from one without its adapter.

        Raises LoadError for an adapter that does not fit the model.
        """
        spec = engine.spec
        if not isinstance(engine, TextClient) or not isinstance(spec, TextSpec) or spec.adapter is None:
            return False
        plain = msgspec.structs.replace(spec, adapter=None)
        beside = next((e for (loaded_key, _), e in self._newest.items() if loaded_key == plain), None)
        if not isinstance(beside, TextClient) or beside.state.name not in ("ready", "unloaded"):
            return False
        if fault := await asyncio.to_thread(unusable, spec.adapter.path, spec.model_path):
            raise LoadError(fault, field="lora_adapters")
        engine.rest_beside(beside)
        return True

    async def expect(self, specs: Iterable[Spec]) -> None:
        """Prepare for engines that are about to be acquired: end the process that waits for none of them."""
        if self._spare is not None and all(spec.hosted or not spec.prewarmed for spec in specs):
            await self._spare.end()

    async def release(self, engine: AnyEngine) -> None:
        """Stop it if this was its last user, even if the caller is cancelled meanwhile."""
        self._users[engine] -= 1
        if self._users[engine] > 0:
            return
        del self._users[engine]
        for key in [k for k, e in self._newest.items() if e is engine]:
            del self._newest[key]
            if (lock := self._loading.get(key)) is not None and not lock.locked():
                del self._loading[key]
        stopping = asyncio.create_task(engine.stop())
        self._ending.add(stopping)
        stopping.add_done_callback(self._ending.discard)
        await asyncio.shield(stopping)

    def kill(self) -> None:
        for engine in self._users:
            engine.kill()
        self._hosts.kill()

    async def close(self) -> None:
        """Stop all engines, and wait for those that are stopping."""
        engines = list(self._users)
        self._users.clear()
        self._newest.clear()
        self._hosts.closing()
        await asyncio.gather(*(e.stop() for e in engines), *self._ending)
        await self._hosts.close()
