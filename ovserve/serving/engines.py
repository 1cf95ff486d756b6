"""The engines of all servables, shared by those with the same specification.

Two graphs over one model, or two versions of a graph that differ in nodes or parsers only, have equal engine
specifications over equal model files. They get the same process: weights are in memory once, and such a
reload costs milliseconds. An engine ends when the last servable that acquired it has released it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from ovserve.calculators.resource import client_of
from ovserve.engine.client.client import EngineClient
from ovserve.engine.client.hosting.hosts import Hosts
from ovserve.engine.client.prewarm import PrewarmedProcess
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.client.text import TextClient
from ovserve.engine.model.lora import unusable
from ovserve.engine.protocol.specs import Spec, TextSpec
from ovserve.errors import LoadError

AnyEngine = EngineClient[Any, Any]
Key = tuple[Spec, str]  # the specification, and a digest of the model files it names


def with_cache(spec: Spec, directory: str) -> Spec:
    """Apply OVMS's --cache_dir: a cache directory for every model whose plugin_config names none."""
    if not directory:
        return spec
    properties = {"CACHE_DIR": directory} | json.loads(spec.properties)
    return msgspec.structs.replace(spec, properties=json.dumps(properties, sort_keys=True))


class Engines:
    """Engines by key."""

    def __init__(
        self,
        settings: EngineSettings,
        prewarmed: PrewarmedProcess | None = None,
    ) -> None:
        """`prewarmed` is for the first engine that starts."""
        self._settings = settings
        self.ready_timeout = settings.ready_timeout  # seconds; nodes have as long for their load()
        self._prewarmed = prewarmed
        self._hosts = Hosts(settings)
        self._newest: dict[Key, AnyEngine] = {}
        self._users: Counter[AnyEngine] = Counter()
        self._ending: set[asyncio.Task[None]] = set()
        self._loading: dict[Key, asyncio.Lock] = {}

    def __len__(self) -> int:
        """Return the number of engines in use."""
        return len(self._users)

    def has(self, key: Key) -> bool:
        """Return whether it would be shared rather than started."""
        engine = self._newest.get(key)
        return engine is not None and engine.state.name not in ("failed", "stopped")

    async def acquire(self, key: Key, *, on_demand: bool = False) -> AnyEngine:
        """Return the engine, started if needed. A failed one is not reused. Raises LoadError if it does not
        load.

        With `on_demand`, one that differs from a loaded one by an adapter alone is started by its first
        request.
        """
        async with self._loading.setdefault(key, asyncio.Lock()):
            if not self.has(key):
                engine = client_of(key[0], self._settings, self._hosts)
                if not on_demand or not await self._rest(engine):
                    await engine.launch(self._prewarmed if key[0].prewarmed else None)
                self._newest[key] = engine
            engine = self._newest[key]
            self._users[engine] += 1
            return engine

    async def _rest(self, engine: AnyEngine) -> bool:
        """Have the engine wait for its first request, if all about it is known from one without its adapter.

        Raises LoadError for an adapter that does not fit the model.
        """
        spec = engine.spec
        if not isinstance(engine, TextClient) or not isinstance(spec, TextSpec) or spec.adapter is None:
            return False
        plain = msgspec.structs.replace(spec, adapter=None)
        beside = next((e for (known, _), e in self._newest.items() if known == plain), None)
        if not isinstance(beside, TextClient) or beside.state.name not in ("ready", "unloaded"):
            return False
        if fault := await asyncio.to_thread(unusable, spec.adapter.path, spec.model_path):
            raise LoadError(fault, field="lora_adapters")
        engine.rest_beside(beside)
        return True

    async def expect(self, specs: Iterable[Spec]) -> None:
        """Prepare for engines that are about to be acquired: end the process that waits for none of them."""
        if self._prewarmed is not None and all(spec.hosted or not spec.prewarmed for spec in specs):
            await self._prewarmed.end()

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
