"""The composition root: builds everything, starts it, and stops it in the reverse order. Called by `cli`.

Start: listen (a port that is taken must not cost a model load), then load. Stop, on SIGTERM or SIGINT: be
not ready, let running requests finish for `shutdown_timeout`, end the rest, stop the engines. A second signal
does not wait.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ovserve import log as logs
from ovserve.access import AccessLog, Guard
from ovserve.access.keys import load_key
from ovserve.calculators import MODULES
from ovserve.engine.spare import Spare
from ovserve.engine.state import RestartPolicy
from ovserve.errors import LoadError
from ovserve.graph import Registry
from ovserve.media.loader import Bounds, Media
from ovserve.media.policy import parse_policy
from ovserve.rest.addresses import UNIX, is_local, split
from ovserve.rest.app import build_app, build_runner
from ovserve.rest.cors import Cors
from ovserve.rest.limits import RestLimits
from ovserve.rest.listen import Listener
from ovserve.rest.tls import Certificate
from ovserve.serving.config_file import ConfigFile, Monitoring
from ovserve.serving.gate import Limits
from ovserve.serving.inference import Inference
from ovserve.serving.manager import Manager
from ovserve.serving.metric_families import ALL, OF_TENSOR_MODELS, parse_list
from ovserve.serving.metrics import Metrics
from ovserve.serving.repository import GraphsDirectory, Repository, SingleGraph
from ovserve.serving.response_store import ResponseStore
from ovserve.serving.responses import ResponsesService
from ovserve.serving.watcher import Reloads
from ovserve.settings import Settings
from ovserve.tracing import Tracing

if TYPE_CHECKING:
    from ovserve.rpc.server import RpcServer

LAST_WORDS_SECONDS = 2.0  # for requests that were ended to get their error out

log = logging.getLogger(__name__)


async def serve(
    settings: Settings,
    started: Callable[[int], None] | None = None,
    notices: Iterable[str] = (),
    spare: Spare | None = None,
) -> int:
    """Serve until a signal. `started` is called with the HTTP port once everything is loaded. `notices` are
    warnings about the command line. `spare` is for the first engine, and ended if there is none.

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
        spare=spare,
    )
    reloads = Reloads(manager)
    limits = RestLimits(
        settings.max_body_bytes,
        LAST_WORDS_SECONDS,
        head_bytes=settings.max_head_bytes,
        read_seconds=settings.read_timeout,
        write_seconds=settings.write_timeout,
        connections=settings.max_connections,
        ping_seconds=settings.sse_ping_interval,
    )
    responses = ResponsesService(manager, _response_store(settings))
    tracing = Tracing(settings.otlp_traces_endpoint) if settings.otlp_traces_endpoint else None
    access_log = AccessLog(*([tracing.tell] if tracing else []))
    guard = _guard(settings)
    inference = Inference(manager)
    app = build_app(manager, limits, responses, guard, _cors(settings), access_log, inference)
    runner = build_runner(app, limits)
    rpc = _rpc_server(manager, settings, guard, inference, access_log)
    await runner.setup()
    listener = Listener(runner, limits, _certificate(settings))
    try:
        urls = await listener.open(split(settings.rest_bind_address), settings.rest_port)
        log.info("listening on %s, loading %s", ", ".join(urls), _what(settings))
        if rpc is not None:
            log.info("listening for gRPC on %s:%d", settings.grpc_bind_address, await rpc.start())
        await responses.start()
        loading = asyncio.create_task(_load(manager, settings))
        waiting = asyncio.create_task(stop.wait())
        await asyncio.wait({loading, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            loading.cancel()
            await asyncio.wait({loading})
            return 0
        loading.result()
        if spare is not None:
            await spare.end()
        gc.collect()
        gc.freeze()  # what loading made stays: keep it out of every collection under load
        _announce(urls[0], manager)
        if started is not None:
            started(listener.port)
        reloads.start(settings.file_system_poll_wait_seconds)
        await waiting
        log.info("stopping; running requests have %g s", settings.shutdown_timeout)
    finally:
        manager.stopping = True
        stop.clear()
        draining = asyncio.create_task(manager.drain(settings.shutdown_timeout))
        forcing = asyncio.create_task(_force(stop, manager, draining))
        await reloads.stop()
        await asyncio.wait({draining})
        await listener.close()
        await responses.stop()
        await manager.stop()
        if rpc is not None:
            await rpc.stop(LAST_WORDS_SECONDS)
        await runner.cleanup()
        await responses.close()
        forcing.cancel()
        if tracing is not None:
            await tracing.stop()
        log.info("stopped")
    return 0


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
    addresses = split(settings.rest_bind_address) + (_rpc_addresses(settings) if settings.grpc_port else [])
    if not guard.required and (exposed := [a for a in addresses if not is_local(a)]):
        log.warning(
            "ANYONE who can reach %s can use and reconfigure this server: no API key is required. Set "
            "--api_key_file or --api_keys_file, or listen on 127.0.0.1.",
            ", ".join(exposed),
        )
    return guard


def _limits(settings: Settings) -> Limits:
    return Limits(
        settings.max_queue, settings.max_queue_tokens, settings.queue_timeout, settings.request_timeout
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
    return ResponseStore(path, ttl=settings.response_store_ttl, max_bytes=settings.response_store_max_bytes)


def _cors(settings: Settings) -> Cors:
    cors = Cors(
        settings.allowed_origins,
        settings.allowed_methods,
        settings.allowed_headers,
        settings.allow_credentials,
    )
    if problem := cors.problem():
        raise LoadError(f"--{problem}")
    return cors


def _rpc_addresses(settings: Settings) -> list[str]:
    return [address.strip() for address in settings.grpc_bind_address.split(",")]


def _rpc_server(
    manager: Manager, settings: Settings, guard: Guard, inference: Inference, access_log: AccessLog
) -> RpcServer | None:
    if not settings.grpc_port:
        return None
    # Engines are started by exec. grpc prepares for a copy of this process instead, and logs that it cannot.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    from ovserve.rpc.server import RpcOptions, RpcServer, parse_arguments  # grpc takes 0.1 s to import
    from ovserve.rpc.tls import credentials

    options = RpcOptions(
        _rpc_addresses(settings),
        settings.grpc_port,
        settings.max_body_bytes,
        arguments=parse_arguments(settings.grpc_channel_arguments),
        credentials=credentials(*_tls_files(settings)) if settings.tls_cert_file else None,
        head_bytes=settings.max_head_bytes,
        calls=settings.max_connections,
    )
    return RpcServer(manager, inference, options, guard, access_log)


def _certificate(settings: Settings) -> Certificate | None:
    return Certificate(*_tls_files(settings)) if settings.tls_cert_file else None


def _tls_files(settings: Settings) -> tuple[Path, Path, Path | None]:
    ca = Path(settings.tls_client_ca_file) if settings.tls_client_ca_file else None
    return Path(settings.tls_cert_file), Path(settings.tls_key_file), ca


def _announce(url: str, manager: Manager) -> None:
    lines = ["", f"ovserve is ready at {url}/v3", "", "serving:"]
    lines += [f"  {s.name}  context {s.max_length or 'unknown'}" for s in manager.servables]
    lines += [f"  {s.name}  NOT SERVED: {s.reason}" for s in manager.statuses() if s.failed]
    if manager.servables and not url.startswith(UNIX):
        message = '{"role":"user","content":"Say hello"}'
        body = f'{{"model":"{manager.servables[0].name}","stream":true,"messages":[{message}]}}'
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
