"""Settings: every option of `ovserve serve`, one field each: flag, environment variable, help and type.

`environment.py` reads values from text, and `problem` checks them together. OVMS's options keep
OVMS's names; those of them that are not options here are at the end. A flag wins over its variable,
and that over the default. Settings are never global.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from ovserve.log import FORMATS, LEVELS

GROUPS = (SERVED, LISTEN, SECURITY, LIMITS, PROCESS, IDLE, LOGS, METRICS, RESPONSES, BATCHES, CONSOLE) = (
    "What is served",
    "Where it listens",
    "Security",
    "Limits",
    "Start and stop",
    "Idle models",
    "Logs",
    "Metrics",
    "Stored responses",
    "Batches",
    "Console",
)


def option(
    default: Any,
    help_: str,
    *,
    group: str = SERVED,
    choices: tuple[str, ...] = (),
    environment: tuple[str, ...] = (),
    flag: bool = True,
    aliases: tuple[str, ...] = (),
) -> Any:
    """A Settings field. The type of `default` is the option's: str, int, float or bool.

    `environment` are names besides OVSERVE_<NAME>, such as OVMS's. With `flag=False` only the environment
    sets it, which is for secrets: a command line can be read by every user of the machine. `aliases` are
    flags besides --<name>, where OVMS has another word.
    """
    metadata = {"help": help_, "group": group, "choices": choices, "environment": environment, "flag": flag}
    metadata["aliases"] = aliases
    return field(default=default, metadata=metadata, repr=flag)


@dataclass(frozen=True)
class Settings:
    source_model: str = option(
        "",
        "what to serve, like the argument SOURCE (default: smollm2)",
        aliases=("model_id",),
    )
    model_repository_path: str = option(
        "models",
        "directory of pulled models; its config.json, if any, is served where nothing else is named",
        environment=("OVMS_MODEL_REPOSITORY_PATH",),
    )
    model_name: str = option("", "name under which the graph is served (default: from the path)")
    model_path: str = option(
        "", "directory that holds graph.pbtxt or a model, or the file of a model", aliases=("model_dir",)
    )
    model_alias: str = option(
        "",
        "other names, separated by commas: ALIAS=NAME, or ALIAS where one graph is served; * in an "
        "ALIAS is any characters",
    )
    config_path: str = option("", "file that lists what is served: OVMS's config.json, or the same as YAML")
    graphs_dir: str = option("", "directory with one folder per graph; the folder's name is the graph's")
    file_system_poll_wait_seconds: float = option(
        1.0, "seconds between two looks for changed files; 0: on request only"
    )
    reload_policy: str = option(
        "beside",
        "how a changed graph is loaded: beside the old one where memory holds both, or in place of it",
        choices=("beside", "replace"),
    )
    reload_drain_timeout: float = option(
        600.0, "seconds running requests get to finish on a graph that was replaced or removed"
    )
    rest_port: int = option(
        8000, "port of the HTTP server; 0 takes a free one", group=LISTEN, aliases=("http_port",)
    )
    rest_bind_address: str = option(
        "127.0.0.1",
        "addresses the HTTP server listens on, separated by commas; 0.0.0.0 for all, unix:/path for a socket",
        group=LISTEN,
    )
    tls_cert_file: str = option(
        "", "certificate chain (PEM) of the server; makes TCP listeners speak TLS", group=SECURITY
    )
    tls_key_file: str = option("", "its key (PEM); both are read again when they change", group=SECURITY)
    tls_client_ca_file: str = option(
        "", "CA certificates (PEM); clients must present a certificate of one of them", group=SECURITY
    )
    grpc_port: int = option(
        0, "port of the gRPC server; 0: there is none (OVMS's --port)", group=LISTEN, aliases=("port",)
    )
    grpc_bind_address: str = option(
        "127.0.0.1", "addresses the gRPC server listens on, separated by commas", group=LISTEN
    )
    grpc_channel_arguments: str = option(
        "", "arguments of the gRPC library, as key=value,key=value", group=LISTEN
    )
    api_key: str = option(
        "",
        "the one key that clients must present, if --api_key_file gives none",
        group=SECURITY,
        environment=("API_KEY",),
        flag=False,
    )
    api_key_file: str = option("", "file whose first line is that key", group=SECURITY)
    api_keys_file: str = option(
        "", "file of hashed keys with names and limits (TOML); read again when it changes", group=SECURITY
    )
    allowed_media_domains: str = option(
        "",
        "hosts and networks that images may be fetched from, separated by commas, or all; empty: none",
        group=SECURITY,
    )
    allowed_local_media_path: str = option(
        "", "directory whose files requests may name as images; empty: none", group=SECURITY
    )
    allowed_origins: str = option(
        "*", "CORS: origins, separated by commas; empty allows none", group=SECURITY
    )
    allowed_methods: str = option("*", "CORS: methods, separated by commas", group=SECURITY)
    allowed_headers: str = option("*", "CORS: request headers, separated by commas", group=SECURITY)
    allow_credentials: bool = option(
        False, "CORS: with cookies and client certificates; needs origins by name", group=SECURITY
    )
    max_body_bytes: int = option(
        32 << 20,
        "largest request accepted, in bytes: the body over HTTP, also unpacked, the message over gRPC",
        group=LIMITS,
    )
    max_json_nodes: int = option(
        1_000_000,
        "JSON values a body may hold: an object or array counts as two, a long text or an image as one",
        group=LIMITS,
    )
    max_properties: int = option(
        20_000,
        "JSON values of a body outside of its messages, input and prompt: in tools, schemas, metadata and "
        "unknown fields",
        group=LIMITS,
    )
    max_tools: int = option(1_024, "tools a request may offer", group=LIMITS)
    max_messages: int = option(
        10_000, "messages, items of input, or texts and rows of tokens, a request may have", group=LIMITS
    )
    max_tensors: int = option(1_024, "inputs, and outputs, a request of KServe may name", group=LIMITS)
    max_head_bytes: int = option(
        16384,
        "longest request line accepted, and longest header, in bytes; over gRPC all metadata together",
        group=LIMITS,
    )
    max_connections: int = option(
        1000, "connections to the HTTP server at the same time, and calls to the gRPC server", group=LIMITS
    )
    read_timeout: float = option(
        60.0, "seconds a client may take to send the head of a request, and again its body", group=LIMITS
    )
    write_timeout: float = option(
        60.0,
        "seconds in which a client must take some of a waiting answer",
        group=LIMITS,
    )
    sse_ping_interval: float = option(
        15.0, "seconds of silence after which a stream gets a comment; 0: never", group=LIMITS
    )
    max_images: int = option(16, "images a request may have", group=LIMITS)
    max_image_bytes: int = option(
        20_000_000, "size of the file of an image, and of a file part", group=LIMITS
    )
    max_image_pixels: int = option(50_000_000, "pixels of an image, known before it is decoded", group=LIMITS)
    media_fetch_timeout: float = option(
        10.0, "seconds an image may take to be fetched, redirects included", group=LIMITS
    )
    max_audio_bytes: int = option(25 << 20, "size of an audio file, within --max_body_bytes", group=LIMITS)
    max_audio_seconds: float = option(
        4 * 3600.0, "length of a recording, of which an hour takes 115 MB of disk", group=LIMITS
    )
    max_queue: int = option(256, "requests that may wait for an engine that is full", group=LIMITS)
    max_queue_tokens: int = option(262_144, "tokens that their prompts may have together", group=LIMITS)
    max_tokenize_bytes: int = option(
        1 << 20, "bytes of text that one request to tokenize may have", group=LIMITS
    )
    max_detokenize_tokens: int = option(
        262_144, "token ids that one request to detokenize may have", group=LIMITS
    )
    queue_timeout: float = option(
        60.0,
        "seconds a request may wait for room in an engine, or for its first sign",
        group=LIMITS,
    )
    request_timeout: float = option(
        3600.0, "seconds after which an answer that is not complete is ended", group=LIMITS
    )
    load_timeout: float = option(300.0, "seconds an engine may take to load its model", group=PROCESS)
    cache_dir: str = option(
        "",
        "directory of compiled models, which load faster; a graph may have its own (CACHE_DIR)",
        group=PROCESS,
    )
    stall_timeout: float = option(
        120.0,
        "seconds without progress before an engine with work is replaced; 0: for ever",
        group=PROCESS,
    )
    engine_memory_limit: int = option(
        0,
        "bytes of memory an engine may hold before it gets no more requests; 0: what the machine or its "
        "container has",
        group=PROCESS,
    )
    shutdown_timeout: float = option(
        30.0, "seconds running requests get to finish when the server stops", group=PROCESS
    )
    idle_unload_timeout_seconds: float = option(
        0.0, "seconds without a request after which a graph is unloaded until the next; 0: never", group=IDLE
    )
    max_loaded_groups: int = option(
        0, "graphs, or groups of them (group_name), loaded at a time; 0: what memory holds", group=IDLE
    )
    max_loaded_bytes: int = option(
        0, "memory that their engines may take together; 0: what the machine or container has", group=IDLE
    )
    group_residence_seconds: float = option(
        5.0, "seconds a loaded group is kept before others that wait may take its place", group=IDLE
    )
    log_level: str = option("INFO", "least severe messages to log", group=LOGS, choices=LEVELS)
    log_format: str = option(
        "text", "a line for people, or a JSON object per line", group=LOGS, choices=FORMATS
    )
    log_path: str = option("", "file to log to besides stderr; may be rotated", group=LOGS)
    audit_log_path: str = option(
        "",
        "file that gets a JSON object per request: who did what, and how it ended; may be rotated",
        group=LOGS,
    )
    otlp_traces_endpoint: str = option(
        "",
        "OpenTelemetry collector that gets a span per request, e.g. http://127.0.0.1:4318 (extra `otel`)",
        group=LOGS,
        environment=("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    )
    metrics_enable: bool = option(True, "show what is counted at /metrics", group=METRICS)
    metrics_port: int = option(
        0,
        "port of a second listener for /metrics and the health paths, over plain HTTP and without a "
        "key; 0: none",
        group=METRICS,
    )
    metrics_bind_address: str = option(
        "127.0.0.1", "addresses that it listens on, separated by commas", group=METRICS
    )
    metrics_list: str = option("all", "families of metrics to show, separated by commas", group=METRICS)
    response_store: str = option(
        "on",
        "keep responses, for GET, previous_response_id and background",
        group=RESPONSES,
        choices=("on", "off"),
    )
    response_store_path: str = option(
        "~/.local/state/ovserve/responses.db", "file they are kept in (SQLite)", group=RESPONSES
    )
    response_store_ttl: int = option(
        30 * 24 * 3600, "seconds a response is kept after its last use", group=RESPONSES
    )
    response_store_max_bytes: int = option(
        1 << 30, "size of that file; the key that holds most loses its longest unused first", group=RESPONSES
    )
    response_store_max_bytes_per_key: int = option(
        0, "what one key may hold of it; 0: no bound of its own", group=RESPONSES
    )

    max_file_bytes: int = option(
        200 << 20, "largest file for a batch, in bytes; --max_body_bytes bounds each line", group=BATCHES
    )
    file_store_max_bytes: int = option(
        10 << 30, "what uploaded files and results may take on disk; 0: no bound", group=BATCHES
    )
    file_store_max_bytes_per_key: int = option(
        0, "what the files of one key may take of it; 0: no bound of its own", group=BATCHES
    )
    max_files_per_key: int = option(1000, "files that one key may have", group=BATCHES)
    max_batch_requests: int = option(50_000, "requests that one batch may have", group=BATCHES)
    batch_window_seconds: float = option(
        24 * 3600.0, "seconds after which a batch expires with the results that it has", group=BATCHES
    )

    console: str = option(
        "on", "pages for a browser at /console/, where GET / leads", group=CONSOLE, choices=("on", "off")
    )
    console_write: str = option(
        "auto",
        "change graphs from the console, which is as strong as a shell; auto: where keys are "
        "required, or only this machine can connect",
        group=CONSOLE,
        choices=("auto", "on", "off"),
    )
    console_capture: str = option(
        "ask",
        "keep bodies, prompts and answers in memory for the console; ask: an administrator starts it "
        "for some minutes",
        group=CONSOLE,
        choices=("off", "ask", "on"),
    )


OPTIONS: tuple[Field[Any], ...] = fields(Settings)


def cache_path(settings: Settings) -> str:
    """Return --cache_dir as an absolute path; "" for none."""
    return str(Path(settings.cache_dir).expanduser().absolute()) if settings.cache_dir else ""


def tls_files(settings: Settings) -> tuple[Path, Path, Path | None]:
    """Certificate, key, and the CA of clients' certificates; where there is TLS."""
    ca = Path(settings.tls_client_ca_file) if settings.tls_client_ca_file else None
    return Path(settings.tls_cert_file), Path(settings.tls_key_file), ca


def grpc_addresses(settings: Settings) -> list[str]:
    return [address.strip() for address in settings.grpc_bind_address.split(",")]


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


# The flags of OVMS that are not options here, and why; read by `cli/serve.py` and `cli/pull.py`.
#
# A flag without a meaning in this server is accepted with a warning, so that a command line of OVMS can be
# used as it is. One that asks for something this server would not do is rejected, with the way to get it:
# to start and serve something else than was asked for is worse than not to start.


_ONE_LOOP = "one event loop serves all connections, and the engine has its own process"
_PREPARE = "run `ovserve pull` first, with the flags of OVMS's --pull (docs/pull.md), then `serve` its result"

# Of `ovserve pull` too.
MODEL_WITHOUT_EFFECT = {"model_type": "the model's files say which kind of speech model it is"}
MODEL_REFUSED = {
    "vocoder": "SpeechT5 is not converted here; `optimum-cli export` writes it with its vocoder",
}

WITHOUT_EFFECT = {
    **MODEL_WITHOUT_EFFECT,
    "disable_input_count_validation": "a request always has to give every input of a model",
    "grpc_workers": _ONE_LOOP,
    "grpc_max_threads": _ONE_LOOP,
    "grpc_memory_quota": "the size of a message is limited instead",
    "rest_workers": _ONE_LOOP,
    "custom_node_resources_cleaner_interval_seconds": "there are no custom nodes in C++",
    "verbose_response": "answers never hold the rendered prompt",
    "trace_path": "spans go to a collector, see --otlp_traces_endpoint",
}

REFUSED = {
    **MODEL_REFUSED,
    "cpu_extension": "libraries with operations of your own are not loaded",
    **dict.fromkeys(("pull", "configure"), "`ovserve pull` writes a graph.pbtxt; `serve` needs none"),
    **dict.fromkeys(
        ("gguf_filename", "source_loras", "weight-format", "extra_quantization_params", "overwrite_models"),
        _PREPARE,
    ),
    **dict.fromkeys(("draft_source_model", "draft_model_path"), _PREPARE),
}
