"""The composition root: builds everything, starts it, and stops it in the reverse order. Called by `cli`.

Start: the sockets are bound, and the first engine probably loads already (`first_spec.py`). While it does so,
check and load the graphs, import and build the frontends (`frontends.py`). Clients that connect earlier wait
in the sockets' queue. Stop, on SIGTERM or SIGINT: be not ready, let running requests
finish for `shutdown_timeout`, end the rest, stop the engines. A second signal does not wait.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import tempfile
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ovserve import log as logs
from ovserve.access import AccessLog, as_system
from ovserve.calculators.shipped import MODULES
from ovserve.engine.client.spare import Spare
from ovserve.engine.client.spawn import SHARED_MEMORY
from ovserve.engine.protocol.blobs import clear_abandoned
from ovserve.errors import LoadError
from ovserve.graph import Registry
from ovserve.http.sockets import UNIX, Certificate
from ovserve.pull.packaged import better_than
from ovserve.sandbox.bodies import Bodies
from ovserve.scratch import FILES, remove_abandoned
from ovserve.server.build import (
    body_bounds,
    build_audit_log,
    build_guard,
    build_media,
    build_metrics,
    build_response_store,
    require_store,
    serving_settings,
)
from ovserve.server.environment import Listening, listed
from ovserve.server.settings import Settings, tls_files
from ovserve.server.source import Served
from ovserve.services.responses.daily_usage import DailyUsage
from ovserve.services.responses.service import ResponsesService
from ovserve.serving.manager import Manager, Reloads
from ovserve.telemetry.tracing import Tracing

if TYPE_CHECKING:
    from ovserve.server.frontends import Frontends

# Objects made between two collections of the youngest. Those of a request end with it, without the collector,
# which took 12 % of the server's time with Python's 700 (embeddings, 64 clients).
YOUNG_OBJECTS = 20_000
SETTLE_SECONDS = 5.0  # the engine process gets its model within 1 s; a graph may have none

log = logging.getLogger(__name__)


class Server:
    """One server process: `start` until it is ready, `run` until a signal, `stop` whatever was started."""

    def __init__(self, settings: Settings, served: Served, spare: Spare, listening: Listening) -> None:
        """`spare` is for the first engine. Raises LoadError for options that cannot be met."""
        self._served = served
        self._settings = settings
        self._spare = spare
        self._stop = _stop_on_signals()
        registry = Registry(MODULES)
        registry.add_entry_points()
        self._manager = Manager(
            registry,
            serving_settings(settings),
            repository=served.repository,
            metrics=build_metrics(settings, served.repository),
            media=build_media(settings),
            bodies=Bodies(body_bounds(settings)),
            spare=spare,
        )
        self._reloads = Reloads(self._manager)
        self._store = build_response_store(settings)
        self._responses = ResponsesService(self._manager, self._store)
        self._tracing = Tracing(settings.otlp_traces_endpoint) if settings.otlp_traces_endpoint else None
        self._audit_log = build_audit_log(settings)
        self._access_log = AccessLog(*(one.record for one in (self._tracing, self._audit_log) if one))
        self._access_log.times_nodes = self._tracing is not None
        self._guard = build_guard(settings)
        self._daily_usage = DailyUsage(self._guard, self._store)
        self._certificate = Certificate(*tls_files(settings)) if settings.tls_cert_file else None
        self._listening = listening
        self._frontends: Frontends | None = None
        self._loading: asyncio.Task[None] | None = None

    async def start(self) -> bool:
        """Load, and meanwhile open what clients talk to. False if a signal came first; raises LoadError when
        the graph cannot be served."""
        await require_store(self._store, self._settings)
        await self._daily_usage.start()
        loading = self._loading = asyncio.create_task(_load(self._manager, self._served))
        stopping = asyncio.create_task(self._stop.wait())
        urls = self._listening.api.urls(tls=self._certificate is not None)
        if await _has_its_model(self._spare, loading, stopping):
            from ovserve.server.frontends import Frontends  # half of all imports, while the engine loads

            await self._responses.start()
            self._frontends = Frontends(
                self._manager, self._responses, self._store, self._guard, self._access_log, self._settings
            )
            await self._frontends.open(self._listening.api, self._certificate, self._listening.metrics)
            log.info("listening on %s, loading %s", ", ".join(urls), self._served.what)
            # Uncollected, which would take 40 ms: 2,400 of the 136,000 objects of all imports are garbage.
            gc.freeze()
            gc.enable()  # `ovserve.cli.main` has disabled it
        await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not loading.done():
            return False
        loading.result()
        await self._spare.end()
        gc.collect()
        gc.freeze()  # what loading made stays: keep it out of every collection under load
        gc.set_threshold(YOUNG_OBJECTS)
        gc.enable()
        _announce(urls[0], self._manager, self._settings.log_format)
        self._reloads.start(self._settings.file_system_poll_wait_seconds)
        return True

    async def run(self) -> None:
        await self._stop.wait()
        log.info("stopping; running requests have %g s", self._settings.shutdown_timeout)

    async def stop(self) -> None:
        """Be not ready, let running requests finish, end the rest. A second signal does not wait."""
        manager, frontends = self._manager, self._frontends
        manager.stopping = True
        self._stop.clear()
        if self._loading is not None:
            await _end(self._loading)
        draining = asyncio.create_task(manager.drain(self._settings.shutdown_timeout))
        forcing = asyncio.create_task(_force(self._stop, manager, draining))
        await self._reloads.stop()
        await asyncio.wait({draining})
        if frontends is not None:
            frontends.close()
        self._listening.close()
        if frontends is not None:
            await frontends.batches.stop()
        await self._responses.stop()
        await manager.stop()
        if frontends is not None:
            await frontends.stop()
        await self._daily_usage.stop()
        await self._responses.close()
        forcing.cancel()
        if self._tracing is not None:
            await self._tracing.stop()
        if self._audit_log is not None:
            self._audit_log.close()
        log.info("stopped")


async def serve(
    settings: Settings,
    served: Served,
    spare: Spare,
    listening: Listening,
    notices: Iterable[str] = (),
) -> int:
    """Serve until a signal. `notices` are warnings about the command line.

    Returns the exit code. Raises LoadError when the graph cannot be served.
    """
    _set_up_logs(settings)
    _allow_files(2 * settings.max_connections)
    clear_abandoned()
    _check_temporary_directory()
    remove_abandoned(FILES)
    for notice in (*notices, *served.notices):
        log.warning("%s", notice)
    server = Server(settings, served, spare, listening)
    try:
        if await server.start():
            with listed(listening.api.urls(tls=bool(settings.tls_cert_file))[0]):
                await server.run()
    finally:
        await server.stop()
    return 0


async def _end(loading: asyncio.Task[None]) -> None:
    """Whatever came of it: something else has ended the start, or it was reported already."""
    loading.cancel()
    await asyncio.wait({loading})
    if not loading.cancelled():
        loading.exception()


async def _has_its_model(spare: Spare, loading: asyncio.Task[None], stopping: asyncio.Task[Any]) -> bool:
    """Wait until the first engine knows what to load, or there is none to load. False if loading has
    failed. A graph without an engine may load for long too: then this ends after SETTLE_SECONDS."""
    settled = asyncio.create_task(spare.settled.wait())
    ends = {settled, loading, stopping}
    await asyncio.wait(ends, timeout=SETTLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    settled.cancel()
    return not loading.done() or loading.exception() is None


async def _load(manager: Manager, served: Served) -> None:
    """A server of one graph is of no use without it; of several, the others are served. Raises LoadError."""
    with as_system():
        result = await manager.reload()
    if served.only and not manager.versions(served.only):
        raise LoadError(next(iter(result.failed.values()), "it was not loaded"))


def _allow_files(needed: int) -> None:
    """Raise the limit of open files as far as the system lets a process. At 1,024, which is common,
    connections are closed unanswered before there are --max_connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        if most < needed:
            log.warning("--max_connections needs %d open files, and `ulimit -n` allows %d", needed, most)


def _check_temporary_directory() -> None:
    """Raises LoadError where no temporary file can be made: uploads, audio and some engines need them."""
    try:
        if tempfile.gettempdir() == SHARED_MEMORY:
            log.warning(
                "temporary files go to %s, which is memory; mount a writable /tmp, or name another directory "
                "in TMPDIR", SHARED_MEMORY,
            )  # fmt: skip
    except FileNotFoundError as exc:
        raise LoadError(f"{exc.strerror}; mount a writable /tmp, or name a directory in TMPDIR") from exc


def _set_up_logs(settings: Settings) -> None:
    try:
        logs.setup(settings.log_level, settings.log_format, settings.log_path)
    except OSError as exc:
        raise LoadError(f"--log_path: cannot write {settings.log_path}: {exc.strerror}") from exc


EXAMPLES = {  # the rest of a body by endpoint, for the line that shows how to try it
    "chat/completions": '"stream":true,"messages":[{"role":"user","content":"Say hello"}]',
    "embeddings": '"input":["How deep is the sea?"]',
    "classify": '"input":["The ship left the harbour."]',
    "rerank": '"query":"What is the sea?","documents":["Salt water.","A bicycle."]',
}


def _announce(url: str, manager: Manager, form: str) -> None:
    """Print to stdout in the form of the log, so that one reader of JSON lines reads both."""
    ready = f"ovserve is ready at {url}/v3"
    with as_system():
        statuses = manager.statuses()
    served = {s.name: s.max_length for s in manager.servables if s.model is None}
    plain = {s.name: s.version for s in manager.servables if s.model is not None}
    failed = {s.name: s.reason for s in statuses if s.failed}
    if form == "json":
        record = log.makeRecord(log.name, logging.INFO, "", 0, ready, (), None)
        record.fields = lambda: {"serving": served, "plain_models": plain, "not_served": failed}
        print(logs.JsonFormatter().format(record), flush=True)  # noqa: T201
        return
    lines = ["", ready, "", "serving:"]
    lines += [f"  {name}  context {length or 'unknown'}" for name, length in served.items()]
    lines += [f"  {name}  plain model, version {version}" for name, version in plain.items()]
    lines += [f"  {name}  NOT SERVED: {reason}" for name, reason in failed.items()]
    examples = [(s, path) for s in manager.servables for path in EXAMPLES if path in s.endpoints]
    if examples and not url.startswith(UNIX):
        first, path = examples[0]
        body = EXAMPLES[path]
        lines += [
            "",
            "try:",
            f"  curl -N {url}/v3/{path} -H 'Content-Type: application/json' \\",
            f'    -d \'{{"model":"{first.name}",{body}}}\'',
        ]
    lines += [f"\n{better}" for name in served if (better := better_than(name))]
    print("\n".join([*lines, ""]), flush=True)  # noqa: T201


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def _force(stop: asyncio.Event, manager: Manager, draining: asyncio.Task[None]) -> None:
    """Stop waiting at the next signal."""
    await stop.wait()
    log.warning("second signal: not waiting any longer")
    manager.kill()
    draining.cancel()
