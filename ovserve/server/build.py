"""Builds the parts of the server from its settings: repository, limits, metrics, keys and stores."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ovserve.access import Guard
from ovserve.access.access_log import AuditLog
from ovserve.access.keys import load_key
from ovserve.api.openai.body import BodyBounds
from ovserve.engine.admission.fair_queue import Limits
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.client.state import RestartPolicy
from ovserve.errors import LoadError
from ovserve.http.sockets import is_local, split
from ovserve.sandbox.audio_loader import AudioBounds, AudioLoader
from ovserve.sandbox.images.loader import Bounds, Media
from ovserve.sandbox.images.policy import parse_policy
from ovserve.server.settings import Settings, cache_path, grpc_addresses
from ovserve.services.monitoring.families import ALL, parse_list
from ovserve.services.responses.batch_lines import BatchBounds
from ovserve.services.responses.files import FileBounds
from ovserve.services.responses.store import ResponseStore, StoreError
from ovserve.serving.config.file import ConfigFile, Monitoring, Repository
from ovserve.serving.settings import Aliases, IdleSettings, ServingSettings
from ovserve.telemetry.metrics import Metrics

log = logging.getLogger(__name__)


def serving_settings(settings: Settings) -> ServingSettings:
    restarts = RestartPolicy(stall_timeout=settings.stall_timeout, memory_limit=settings.engine_memory_limit)
    idle = IdleSettings(
        settings.idle_unload_timeout_seconds,
        settings.max_loaded_groups,
        settings.max_loaded_bytes,
        settings.group_residence_seconds,
    )
    return ServingSettings(
        EngineSettings(
            ready_timeout=settings.load_timeout,
            restarts=restarts,
            keep_shared=idle.enabled,
        ),
        drain_seconds=settings.reload_drain_timeout,
        replace_first=settings.reload_policy == "replace",
        limits=_limits(settings),
        cache_dir=_cache_dir(settings),
        aliases=Aliases.parse(settings.model_alias),
        idle=idle,
        convert=partial(
            convert_when_loaded,
            repository=Path(os.path.expanduser(settings.model_repository_path)),
            say=log.info,
        ),
    )


def convert_when_loaded(file: Path, repository: Path, say: Callable[[str], None]) -> Path:
    """Return the directory with what a .gguf file is converted to. Raises an OvserveError."""
    from ovserve.pull.run import convert_for_serving  # as long to import as the server

    return convert_for_serving(file, repository, say)


def build_guard(settings: Settings) -> Guard:
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


def build_audit_log(settings: Settings) -> AuditLog | None:
    """Open the file of --audit_log_path. Raises LoadError."""
    if not settings.audit_log_path:
        return None
    try:
        return AuditLog(settings.audit_log_path)
    except OSError as exc:
        raise LoadError(f"--audit_log_path: cannot write {settings.audit_log_path}: {exc.strerror}") from exc


def body_bounds(settings: Settings) -> BodyBounds:
    return BodyBounds(
        settings.max_json_nodes,
        settings.max_properties,
        settings.max_tools,
        settings.max_messages,
        settings.max_tensors,
    )


def build_media(settings: Settings) -> Media:
    policy = parse_policy(settings.allowed_media_domains, settings.allowed_local_media_path)
    bounds = Bounds(
        settings.max_images, settings.max_image_bytes, settings.max_image_pixels, settings.media_fetch_timeout
    )
    audio = AudioLoader(AudioBounds(settings.max_audio_bytes, settings.max_audio_seconds))
    return Media(policy, bounds=bounds, audio=audio)


def build_metrics(settings: Settings, repository: Repository) -> Metrics:
    """Choose the metrics by the configuration's section `monitoring`, read once as in OVMS, else by the
    options."""
    section = repository.monitoring() if isinstance(repository, ConfigFile) else Monitoring()
    listed = settings.metrics_list
    if section.metrics:
        if listed != ALL:
            log.warning("--metrics_list: the list of the configuration file stands in for it")
        listed = ",".join(section.metrics)
    enabled = settings.metrics_enable and section.enabled is not False
    return Metrics(parse_list(listed) if enabled else frozenset())


def _cache_dir(settings: Settings) -> str:
    """Absolute, made if need be; "" for none."""
    if not settings.cache_dir:
        return ""
    path = Path(cache_path(settings))
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise LoadError(f"--cache_dir: cannot make {path}: {exc.strerror}") from exc
    if not os.access(path, os.W_OK):
        raise LoadError(f"--cache_dir: cannot write to {path}")
    return str(path)


def build_response_store(settings: Settings) -> ResponseStore | None:
    if settings.response_store == "off":
        return None
    path = Path(os.path.expanduser(settings.response_store_path))
    return ResponseStore(
        path,
        ttl=settings.response_store_ttl,
        max_bytes=settings.response_store_max_bytes,
        max_bytes_per_owner=settings.response_store_max_bytes_per_key,
    )


def batch_bounds(settings: Settings) -> tuple[FileBounds, BatchBounds]:
    files = FileBounds(
        settings.max_file_bytes,
        settings.file_store_max_bytes,
        settings.file_store_max_bytes_per_key,
        settings.max_files_per_key,
        settings.response_store_ttl,
    )
    return files, BatchBounds(
        settings.batch_window_seconds, settings.max_batch_requests, settings.max_body_bytes
    )


async def require_store(store: ResponseStore | None, settings: Settings) -> None:
    """Raise LoadError if the file that the operator named cannot be used; the default one may fail."""
    if store is None:
        return
    try:
        await store.check()
    except StoreError as exc:
        if settings.response_store_path != Settings.response_store_path:
            raise LoadError(f"--response_store_path: {exc}") from exc
        log.warning("responses are not stored: %s (--response_store_path)", exc)
