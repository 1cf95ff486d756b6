"""Check settings together: what excludes what, what needs what, and the ranges of numbers."""

from __future__ import annotations

from collections.abc import Callable

from ovserve.server.settings import Settings

MOST_PROPERTIES = 100_000  # they stay in the event loop, which takes up to 80 ms for so many

NOT_NEGATIVE = (
    "sse_ping_interval",
    "max_queue",
    "max_queue_tokens",
    "stall_timeout",
    "engine_memory_limit",
    "idle_unload_timeout_seconds",
    "max_loaded_groups",
    "max_loaded_bytes",
    "group_residence_seconds",
    "response_store_max_bytes_per_key",
)
POSITIVE = (
    "max_body_bytes",
    "max_json_nodes",
    "max_properties",
    "max_tools",
    "max_messages",
    "max_tensors",
    "max_head_bytes",
    "max_connections",
    "max_tokenize_bytes",
    "max_detokenize_tokens",
    "read_timeout",
    "write_timeout",
    "load_timeout",
    "max_images",
    "max_image_bytes",
    "max_image_pixels",
    "media_fetch_timeout",
    "max_audio_bytes",
    "max_audio_seconds",
    "queue_timeout",
    "request_timeout",
    "shutdown_timeout",
    "reload_drain_timeout",
    "response_store_ttl",
    "response_store_max_bytes",
    "max_file_bytes",
    "max_files_per_key",
    "max_batch_requests",
    "batch_window_seconds",
)


def problem(settings: Settings) -> str | None:
    """Return what is wrong with the values taken together, or None."""
    return next((message for check in _CHECKS if (message := check(settings)) is not None), None)


def _sources(settings: Settings) -> str | None:
    several = ("config_path", "graphs_dir")
    sources = [n for n in ("source_model", "model_path", *several) if getattr(settings, n)]
    if len(sources) > 1:
        names = " and ".join(f"--{name}" for name in sources)
        return f"{names} exclude each other: one of them says what is served"
    if settings.model_name and sources and sources[0] in several:
        return f"--model_name and --{sources[0]} exclude each other: names are in the configuration"
    if settings.model_name and not sources:
        return "--model_name: needs --model_path or SOURCE, the model that is served under this name"
    seconds = settings.file_system_poll_wait_seconds
    if seconds < 0:
        return f"--file_system_poll_wait_seconds: got {seconds}, which is below 0"
    return None


def _listeners(settings: Settings) -> str | None:
    for name in ("rest_port", "grpc_port", "metrics_port"):
        if not 0 <= getattr(settings, name) <= 65535:
            return f"--{name}: expected 0 to 65535, got {getattr(settings, name)}"
    if settings.grpc_port and settings.grpc_port == settings.rest_port:
        return f"--grpc_port: {settings.grpc_port} is --rest_port too"
    if settings.metrics_port:
        for name in ("rest_port", "grpc_port"):
            if settings.metrics_port == getattr(settings, name):
                return f"--metrics_port: {settings.metrics_port} is --{name} too"
    for name in ("rest_bind_address", "metrics_bind_address"):
        if not getattr(settings, name).strip(", "):
            return f"--{name}: expected an address, got none"
    if bool(settings.tls_cert_file) != bool(settings.tls_key_file):
        return "--tls_cert_file and --tls_key_file: give both or none"
    if settings.tls_client_ca_file and not settings.tls_cert_file:
        return "--tls_client_ca_file: needs --tls_cert_file"
    return None


def _ranges(settings: Settings) -> str | None:
    if settings.max_properties > MOST_PROPERTIES:
        return f"--max_properties: expected at most {MOST_PROPERTIES}, got {settings.max_properties}"
    for name in NOT_NEGATIVE:
        if getattr(settings, name) < 0:
            return f"--{name}: expected 0 or more, got {getattr(settings, name)}"
    for name in POSITIVE:
        if getattr(settings, name) <= 0:
            return f"--{name}: expected more than 0, got {getattr(settings, name)}"
    return None


_CHECKS: tuple[Callable[[Settings], str | None], ...] = (_sources, _listeners, _ranges)
