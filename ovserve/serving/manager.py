"""The set of servables by name. Fronts look one up here; the server loads and stops them through it."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from ovserve.access import current_call
from ovserve.errors import InvalidArgument, ModelNotFound, Unavailable
from ovserve.graph import Registry
from ovserve.serving.loader import load_servable
from ovserve.serving.servable import Servable, State
from ovserve.templating.pool import TemplatePool

RETRY_AFTER = 1.0  # seconds a client is told to wait for a servable that is loading

log = logging.getLogger(__name__)


class Manager:
    """Names to servables. `loading` names are known but answer "not yet"."""

    def __init__(self, registry: Registry, *, ready_timeout: float) -> None:
        self._registry = registry
        self._ready_timeout = ready_timeout
        self._templates = TemplatePool()
        self._servables: dict[str, Servable] = {}
        self._loading: dict[str, int] = {}  # since when, in unix seconds
        self.stopping = False

    async def load(self, name: str, directory: Path) -> Servable:
        """Load and serve a graph directory. Raises LoadError; the name is free again then."""
        self._loading[name] = int(time.time())
        started = time.monotonic()
        try:
            servable = await load_servable(
                name, directory, self._registry, self._templates, ready_timeout=self._ready_timeout
            )
        finally:
            self._loading.pop(name, None)
        self._servables[name] = servable
        log.info("%s is served, loaded in %.1f s", name, time.monotonic() - started)
        return servable

    def get(self, name: str) -> Servable:
        """Raises ModelNotFound, or Unavailable while it loads or the server stops."""
        if self.stopping:
            raise Unavailable("the server is stopping", retry_after=RETRY_AFTER)
        call = current_call()
        if call.caller.may_use(name):  # to others it does not exist, as to those who guess names
            if (servable := self._servables.get(name)) is not None:
                call.model = name
                return servable
            if name in self._loading:
                raise Unavailable(f"model {name!r} is loading", retry_after=RETRY_AFTER)
        known = ", ".join(filter(call.caller.may_use, self._servables)) or "none"
        raise ModelNotFound(f"model {name!r} is not served; served: {known}", param="model")

    @property
    def single(self) -> bool:
        """One servable is all there is, loading ones included."""
        may = current_call().caller.may_use
        return len({name for name in (*self._servables, *self.loading) if may(name)}) == 1

    def only(self, name: str | None) -> Servable:
        """By name; without one, the only servable there is. Raises as `get`, or InvalidArgument."""
        names = list(filter(current_call().caller.may_use, [*self._servables, *self.loading]))
        if name is None and len(names) > 1:
            raise InvalidArgument(
                f"model: required, as {len(names)} are served: {', '.join(names)}", param="model"
            )
        return self.get(name if name is not None else names[0] if names else "")

    @property
    def servables(self) -> list[Servable]:
        return list(self._servables.values())

    @property
    def loading(self) -> dict[str, int]:
        """Names that are not served yet, and since when they load (unix seconds)."""
        return {name: since for name, since in self._loading.items() if name not in self._servables}

    @property
    def ready(self) -> bool:
        """Every servable is available, and there is one."""
        available = [s.state is State.AVAILABLE for s in self.servables]
        return not self.stopping and not self._loading and bool(available) and all(available)

    async def drain(self, seconds: float) -> None:
        """Wait until no request runs, `seconds` at most."""
        try:
            async with asyncio.timeout(seconds):
                for servable in self.servables:
                    await servable.idle.wait()
        except TimeoutError:
            running = sum(s.running for s in self.servables)
            log.warning("%d requests still run after %g s and are ended", running, seconds)

    async def stop(self) -> None:
        """Stop the engines; requests that still run end with an error."""
        await asyncio.gather(*(s.stop() for s in self.servables))
        self._servables.clear()
        await self._templates.stop()
