"""The composition root: builds everything, starts it, and stops it in the reverse order. Called by `cli`.

Start: bind the HTTP sockets (a port that is taken must not cost a model load), load, and while the engine
does so import and build what answers at those sockets (`fronts.py`); who connects earlier waits in their
queue. Stop, on SIGTERM or SIGINT: be not ready, let running requests finish for `shutdown_timeout`, end the
rest, stop the engines. A second signal does not wait.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ovserve import log as logs
from ovserve.access import AccessLog, Guard
from ovserve.access.keys import load_key
from ovserve.admission.controller import Limits
from ovserve.api.openai.bounds import BodyBounds
from ovserve.calculators import MODULES
from ovserve.engine.client.prewarm import PrewarmedProcess
from ovserve.engine.client.state import RestartPolicy
from ovserve.errors import LoadError
from ovserve.graph import Registry
from ovserve.http.transport.addresses import UNIX, is_local, split
from ovserve.http.transport.sockets import Sockets
from ovserve.http.transport.tls import Certificate
from ovserve.monitoring.families import ALL, OF_TENSOR_MODELS, parse_list
from ovserve.responses.service import ResponsesService
from ovserve.responses.store import ResponseStore, StoreError
from ovserve.sandbox.bodies import Bodies
from ovserve.sandbox.images.loader import Bounds, Media
from ovserve.sandbox.images.policy import parse_policy
from ovserve.server.settings import Settings, grpc_addresses, tls_files
from ovserve.serving.config.file import ConfigFile, Monitoring
from ovserve.serving.config.repository import GraphsDirectory, Repository, SingleGraph
from ovserve.serving.manager import Manager
from ovserve.serving.watcher import Reloads
from ovserve.telemetry.counters import Metrics
from ovserve.telemetry.tracing import Tracing

if TYPE_CHECKING:
    from ovserve.server.frontends import Frontends

log = logging.getLogger(__name__)


async def serve(settings: Settings, prewarmed: PrewarmedProcess, notices: Iterable[str] = ()) -> int:
    """Serve until a signal. `spare` is for the first engine. `notices` are warnings about the command line.

    Returns the exit code. Raises LoadError when the graph cannot be served.
    """
    _set_up_logs(settings)
    for notice in notices:
        log.warning("%s", notice)
    stop = _stop_on_signals()
    registry = Registry(MODULES)
    registry.add_entry_points()
    repository = _repository(settings)
    manager = Manager(
        registry,
        ready_timeout=settings.load_timeout,
        metrics=_metrics(settings, repository),
        limits=_limits(settings),
        repository=repository,
        drain_seconds=settings.reload_drain_timeout,
        replace_first=settings.reload_policy == "replace",
        cache_dir=_cache_dir(settings),
        media=_media(settings),
        restarts=RestartPolicy(
            stall_timeout=settings.stall_timeout, memory_limit=settings.engine_memory_limit
        ),
        prewarmed=prewarmed,
        bodies=Bodies(_bounds(settings)),
    )
    reloads = Reloads(manager)
    store = _response_store(settings)
    await _require_store(store, settings)
    responses = ResponsesService(manager, store)
    tracing = Tracing(settings.otlp_traces_endpoint) if settings.otlp_traces_endpoint else None
    access_log = AccessLog(*([tracing.tell] if tracing else []))
    guard = _guard(settings)
    certificate = Certificate(*tls_files(settings)) if settings.tls_cert_file else None
    sockets = Sockets.bind(split(settings.rest_bind_address), settings.rest_port)
    urls = sockets.urls(tls=certificate is not None)
    frontends: Frontends | None = None
    loading = asyncio.create_task(_load(manager, settings))
    waiting = asyncio.create_task(stop.wait())
    try:
        if await _has_its_model(prewarmed, loading):
            from ovserve.server.frontends import Frontends

            await responses.start()
            frontends = Frontends(manager, responses, guard, access_log, settings)
            await frontends.open(sockets, certificate)
            log.info("listening on %s, loading %s", ", ".join(urls), _what(settings))
        await asyncio.wait({loading, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            return 0
        loading.result()
        await prewarmed.end()
        gc.collect()
        gc.freeze()  # what loading made stays: keep it out of every collection under load
        _announce(urls[0], manager, settings.log_format)
        reloads.start(settings.file_system_poll_wait_seconds)
        await waiting
        log.info("stopping; running requests have %g s", settings.shutdown_timeout)
    finally:
        manager.stopping = True
        stop.clear()
        await _end(loading)
        draining = asyncio.create_task(manager.drain(settings.shutdown_timeout))
        forcing = asyncio.create_task(_force(stop, manager, draining))
        await reloads.stop()
        await asyncio.wait({draining})
        if frontends is not None:
            frontends.close()
        sockets.close()
        await responses.stop()
        await manager.stop()
        if frontends is not None:
            await frontends.stop()
        await responses.close()
        forcing.cancel()
        if tracing is not None:
            await tracing.stop()
        log.info("stopped")
    return 0


async def _end(loading: asyncio.Task[None]) -> None:
    """Whatever came of it: something else has ended the start, or it was told already."""
    loading.cancel()
    await asyncio.wait({loading})
    if not loading.cancelled():
        loading.exception()


async def _has_its_model(prewarmed: PrewarmedProcess, loading: asyncio.Task[None]) -> bool:
    """When the first engine has been told what to load, and needs us no more for a while, or needs nothing
    as there is no graph. False if loading has failed."""
    settled = asyncio.create_task(prewarmed.settled.wait())
    await asyncio.wait({settled, loading}, return_when=asyncio.FIRST_COMPLETED)
    settled.cancel()
    return not loading.done() or loading.exception() is None


def _repository(settings: Settings) -> Repository:
    if settings.config_path:
        return ConfigFile(Path(settings.config_path))
    if settings.graphs_dir:
        return GraphsDirectory(Path(settings.graphs_dir))
    return SingleGraph(settings.model_name, Path(settings.model_path))


def _what(settings: Settings) -> str:
    return settings.model_path or settings.config_path or settings.graphs_dir


async def _load(manager: Manager, settings: Settings) -> None:
    """A server of one graph is of no use without it; of several, the others are served."""
    if settings.model_name:
        await manager.load(settings.model_name)
    else:
        await manager.reload()


def _set_up_logs(settings: Settings) -> None:
    try:
        logs.setup(settings.log_level, settings.log_format, settings.log_path)
    except OSError as exc:
        raise LoadError(f"--log_path: cannot write {settings.log_path}: {exc.strerror}") from exc


def _guard(settings: Settings) -> Guard:
    key = load_key(Path(settings.api_key_file)) if settings.api_key_file else settings.api_key
    guard = Guard(key, Path(settings.api_keys_file) if settings.api_keys_file else None)
    addresses = split(settings.rest_bind_address) + (grpc_addresses(settings) if settings.grpc_port else [])
    if not guard.required and (exposed := [a for a in addresses if not is_local(a)]):
        log.warning(
            "ANYONE who can reach %s can use and reconfigure this server: no API key is required. Set "
            "--api_key_file or --api_keys_file, or listen on 127.0.0.1.",
            ", ".join(exposed),
        )
    return guard


def _limits(settings: Settings) -> Limits:
    return Limits(
        settings.max_queue,
        settings.max_queue_tokens,
        settings.queue_timeout,
        settings.request_timeout,
        max_tokenize_bytes=settings.max_tokenize_bytes,
        max_detokenize_tokens=settings.max_detokenize_tokens,
    )


def _bounds(settings: Settings) -> BodyBounds:
    return BodyBounds(
        settings.max_json_nodes,
        settings.max_properties,
        settings.max_tools,
        settings.max_messages,
        settings.max_tensors,
    )


def _media(settings: Settings) -> Media:
    policy = parse_policy(settings.allowed_media_domains, settings.allowed_local_media_path)
    bounds = Bounds(
        settings.max_images, settings.max_image_bytes, settings.max_image_pixels, settings.media_fetch_timeout
    )
    return Media(policy, bounds=bounds)


def _metrics(settings: Settings, repository: Repository) -> Metrics:
    """By the configuration's section `monitoring`, read once as in OVMS, else by the options."""
    section = repository.monitoring() if isinstance(repository, ConfigFile) else Monitoring()
    listed = settings.metrics_list
    if section.metrics:
        if listed != ALL:
            log.warning("--metrics_list: the list of the configuration file stands in for it")
        listed = ",".join(section.metrics)
    enabled = settings.metrics_enable and section.enabled is not False
    names = parse_list(listed) if enabled else frozenset()
    for name in sorted(names & OF_TENSOR_MODELS):
        log.warning("metrics_list: %s is OVMS's for tensor models; no graph has it", name)
    return Metrics(names)


def _cache_dir(settings: Settings) -> str:
    """Absolute, made if need be; "" for none."""
    if not settings.cache_dir:
        return ""
    path = Path(settings.cache_dir).expanduser().absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise LoadError(f"--cache_dir: cannot make {path}: {exc.strerror}") from exc
    if not os.access(path, os.W_OK):
        raise LoadError(f"--cache_dir: cannot write to {path}")
    return str(path)


def _response_store(settings: Settings) -> ResponseStore | None:
    if settings.response_store == "off":
        return None
    path = Path(settings.response_store_path).expanduser()
    return ResponseStore(
        path,
        ttl=settings.response_store_ttl,
        max_bytes=settings.response_store_max_bytes,
        max_bytes_per_owner=settings.response_store_max_bytes_per_key,
    )


async def _require_store(store: ResponseStore | None, settings: Settings) -> None:
    """Raise LoadError if the file that the operator named cannot be used; the default one may fail."""
    if store is None:
        return
    try:
        await store.check()
    except StoreError as exc:
        if settings.response_store_path != Settings.response_store_path:
            await store.close()
            raise LoadError(f"--response_store_path: {exc}") from exc
        log.warning("responses are not stored: %s (--response_store_path)", exc)


def _announce(url: str, manager: Manager, form: str) -> None:
    """On stdout, in the form of the log: whoever reads JSON lines reads both."""
    ready = f"ovserve is ready at {url}/v3"
    served = {s.name: s.max_length for s in manager.servables}
    failed = {s.name: s.reason for s in manager.statuses() if s.failed}
    if form == "json":
        record = log.makeRecord(log.name, logging.INFO, "", 0, ready, (), None)
        record.fields = {"serving": served, "not_served": failed}
        print(logs.JsonFormatter().format(record), flush=True)  # noqa: T201
        return
    lines = ["", ready, "", "serving:"]
    lines += [f"  {name}  context {length or 'unknown'}" for name, length in served.items()]
    lines += [f"  {name}  NOT SERVED: {reason}" for name, reason in failed.items()]
    if served and not url.startswith(UNIX):
        message = '{"role":"user","content":"Say hello"}'
        body = f'{{"model":"{next(iter(served))}","stream":true,"messages":[{message}]}}'
        lines += [
            "",
            "try:",
            f"  curl -N {url}/v3/chat/completions -H 'Content-Type: application/json' \\",
            f"    -d '{body}'",
        ]
    print("\n".join([*lines, ""]), flush=True)  # noqa: T201


def _stop_on_signals() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def _force(stop: asyncio.Event, manager: Manager, draining: asyncio.Task[None]) -> None:
    """At the next signal wait for nothing any more."""
    await stop.wait()
    log.warning("second signal: not waiting any longer")
    manager.kill()
    draining.cancel()
