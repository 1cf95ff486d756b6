"""Settings: every option of `ovserve serve`, one field each: flag, environment variable, help and type.

`environment.py` reads values from text, and `problem` checks them together. OVMS's options keep
OVMS's names; those of them that are not options here are at the end. A flag wins over its variable,
and that over the default. Settings are never global.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from functools import partial
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


# Options of one group.
_listener = partial(option, group=LISTEN)
_security = partial(option, group=SECURITY)
_limit = partial(option, group=LIMITS)
_process = partial(option, group=PROCESS)
_idle = partial(option, group=IDLE)
_logs = partial(option, group=LOGS)
_metrics = partial(option, group=METRICS)
_responses = partial(option, group=RESPONSES)
_batches = partial(option, group=BATCHES)
_console = partial(option, group=CONSOLE)


@dataclass(frozen=True)
class Settings:
    source_model: str = option(
        "", "what to serve, like the argument SOURCE (default: smollm2)", aliases=("model_id",)
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
    rest_port: int = _listener(8000, "port of the HTTP server; 0 takes a free one", aliases=("http_port",))
    rest_bind_address: str = _listener(
        "127.0.0.1",
        "addresses the HTTP server listens on, separated by commas; 0.0.0.0 for all, unix:/path for a socket",
    )
    tls_cert_file: str = _security("", "certificate chain (PEM) of the server; makes TCP listeners speak TLS")
    tls_key_file: str = _security("", "its key (PEM); both are read again when they change")
    tls_client_ca_file: str = _security(
        "", "CA certificates (PEM); clients must present a certificate of one of them"
    )
    grpc_port: int = _listener(
        0, "port of the gRPC server; 0: there is none (OVMS's --port)", aliases=("port",)
    )
    grpc_bind_address: str = _listener(
        "127.0.0.1", "addresses the gRPC server listens on, separated by commas"
    )
    grpc_channel_arguments: str = _listener("", "arguments of the gRPC library, as key=value,key=value")
    api_key: str = _security(
        "",
        "the one key that clients must present, if --api_key_file gives none",
        environment=("API_KEY",),
        flag=False,
    )
    api_key_file: str = _security("", "file whose first line is that key")
    api_keys_file: str = _security(
        "", "file of hashed keys with names and limits (TOML); read again when it changes"
    )
    allowed_media_domains: str = _security(
        "", "hosts and networks that images may be fetched from, separated by commas, or all; empty: none"
    )
    allowed_local_media_path: str = _security(
        "", "directory whose files requests may name as images; empty: none"
    )
    allowed_origins: str = _security("*", "CORS: origins, separated by commas; empty allows none")
    allowed_methods: str = _security("*", "CORS: methods, separated by commas")
    allowed_headers: str = _security("*", "CORS: request headers, separated by commas")
    allow_credentials: bool = _security(
        False, "CORS: with cookies and client certificates; needs origins by name"
    )
    max_body_bytes: int = _limit(
        32 << 20,
        "largest request accepted, in bytes: the body over HTTP, also unpacked, the message over gRPC",
    )
    max_json_nodes: int = _limit(
        1_000_000,
        "JSON values a body may hold: an object or array counts as two, a long text or an image as one",
    )
    max_properties: int = _limit(
        20_000,
        "JSON values of a body outside of its messages, input and prompt: in tools, schemas, metadata and "
        "unknown fields",
    )
    max_tools: int = _limit(1_024, "tools a request may offer")
    max_messages: int = _limit(
        10_000, "messages, items of input, or texts and rows of tokens, a request may have"
    )
    max_tensors: int = _limit(1_024, "inputs, and outputs, a request of KServe may name")
    max_head_bytes: int = _limit(
        16384, "longest request line accepted, and longest header, in bytes; over gRPC all metadata together"
    )
    max_connections: int = _limit(
        1000, "connections to the HTTP server at the same time, and calls to the gRPC server"
    )
    read_timeout: float = _limit(
        60.0, "seconds a client may take to send the head of a request, and again its body"
    )
    write_timeout: float = _limit(60.0, "seconds in which a client must take some of a waiting answer")
    sse_ping_interval: float = _limit(
        15.0, "seconds of silence after which a stream gets a comment; 0: never"
    )
    max_images: int = _limit(16, "images a request may have")
    max_image_bytes: int = _limit(20_000_000, "size of the file of an image, and of a file part")
    max_image_pixels: int = _limit(50_000_000, "pixels of an image, known before it is decoded")
    media_fetch_timeout: float = _limit(10.0, "seconds an image may take to be fetched, redirects included")
    max_audio_bytes: int = _limit(25 << 20, "size of an audio file, within --max_body_bytes")
    max_audio_seconds: float = _limit(
        4 * 3600.0, "length of a recording, of which an hour takes 115 MB of disk"
    )
    max_queue: int = _limit(256, "requests that may wait for an engine that is full")
    max_queue_tokens: int = _limit(262_144, "tokens that their prompts may have together")
    max_tokenize_bytes: int = _limit(1 << 20, "bytes of text that one request to tokenize may have")
    max_detokenize_tokens: int = _limit(262_144, "token ids that one request to detokenize may have")
    queue_timeout: float = _limit(
        60.0, "seconds a request may wait for room in an engine, or for its first sign"
    )
    request_timeout: float = _limit(3600.0, "seconds after which an answer that is not complete is ended")
    load_timeout: float = _process(300.0, "seconds an engine may take to load its model")
    cache_dir: str = _process(
        "", "directory of compiled models, which load faster; a graph may have its own (CACHE_DIR)"
    )
    stall_timeout: float = _process(
        120.0, "seconds without progress before an engine with work is replaced; 0: for ever"
    )
    engine_memory_limit: int = _process(
        0,
        "bytes of memory an engine may hold before it gets no more requests; 0: what the machine or its "
        "container has",
    )
    shutdown_timeout: float = _process(30.0, "seconds running requests get to finish when the server stops")
    idle_unload_timeout_seconds: float = _idle(
        0.0, "seconds without a request after which a graph is unloaded until the next; 0: never"
    )
    max_loaded_groups: int = _idle(
        0, "graphs, or groups of them (group_name), loaded at a time; 0: what memory holds"
    )
    max_loaded_bytes: int = _idle(
        0, "memory that their engines may take together; 0: what the machine or container has"
    )
    group_residence_seconds: float = _idle(
        5.0, "seconds a loaded group is kept before others that wait may take its place"
    )
    log_level: str = _logs("INFO", "least severe messages to log", choices=LEVELS)
    log_format: str = _logs("text", "a line for people, or a JSON object per line", choices=FORMATS)
    log_path: str = _logs("", "file to log to besides stderr; may be rotated")
    audit_log_path: str = _logs(
        "", "file that gets a JSON object per request: who did what, and how it ended; may be rotated"
    )
    otlp_traces_endpoint: str = _logs(
        "",
        "OpenTelemetry collector that gets a span per request, e.g. http://127.0.0.1:4318 (extra `otel`)",
        environment=("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    )
    metrics_enable: bool = _metrics(True, "show what is counted at /metrics")
    metrics_port: int = _metrics(
        0,
        "port of a second listener for /metrics and the health paths, over plain HTTP and without a "
        "key; 0: none",
    )
    metrics_bind_address: str = _metrics("127.0.0.1", "addresses that it listens on, separated by commas")
    metrics_list: str = _metrics("all", "families of metrics to show, separated by commas")
    response_store: str = _responses(
        "on", "keep responses, for GET, previous_response_id and background", choices=("on", "off")
    )
    response_store_path: str = _responses(
        "~/.local/state/ovserve/responses.db", "file they are kept in (SQLite)"
    )
    response_store_ttl: int = _responses(30 * 24 * 3600, "seconds a response is kept after its last use")
    response_store_max_bytes: int = _responses(
        1 << 30, "size of that file; the key that holds most loses its longest unused first"
    )
    response_store_max_bytes_per_key: int = _responses(
        0, "what one key may hold of it; 0: no bound of its own"
    )

    max_file_bytes: int = _batches(
        200 << 20, "largest file for a batch, in bytes; --max_body_bytes bounds each line"
    )
    file_store_max_bytes: int = _batches(
        10 << 30, "what uploaded files and results may take on disk; 0: no bound"
    )
    file_store_max_bytes_per_key: int = _batches(
        0, "what the files of one key may take of it; 0: no bound of its own"
    )
    max_files_per_key: int = _batches(1000, "files that one key may have")
    max_batch_requests: int = _batches(50_000, "requests that one batch may have")
    batch_window_seconds: float = _batches(
        24 * 3600.0, "seconds after which a batch expires with the results that it has"
    )

    console: str = _console(
        "on", "pages for a browser at /console/, where GET / leads", choices=("on", "off")
    )
    console_write: str = _console(
        "auto",
        "change graphs from the console, which is as strong as a shell; auto: where keys are "
        "required, or only this machine can connect",
        choices=("auto", "on", "off"),
    )
    console_capture: str = _console(
        "ask",
        "keep bodies, prompts and answers in memory for the console; ask: an administrator starts it "
        "for some minutes",
        choices=("off", "ask", "on"),
    )


OPTIONS: tuple[Field[Any], ...] = fields(Settings)


def cache_path(settings: Settings) -> str:
    """Return --cache_dir as an absolute path; "" for none."""
    return str(Path(os.path.expanduser(settings.cache_dir)).absolute()) if settings.cache_dir else ""


def tls_files(settings: Settings) -> tuple[Path, Path, Path | None]:
    """Certificate, key, and the CA of clients' certificates; where there is TLS."""
    ca = Path(settings.tls_client_ca_file) if settings.tls_client_ca_file else None
    return Path(settings.tls_cert_file), Path(settings.tls_key_file), ca


def grpc_addresses(settings: Settings) -> list[str]:
    return [address.strip() for address in settings.grpc_bind_address.split(",")]


MOST_PROPERTIES = 100_000  # they stay in the event loop, which takes up to 80 ms for so many

PORTS = ("rest_port", "grpc_port", "metrics_port")
MAY_BE_ZERO = (  # of the numbers; all others are above 0
    "file_system_poll_wait_seconds", "sse_ping_interval", "max_queue", "max_queue_tokens", "stall_timeout",
    "engine_memory_limit", "idle_unload_timeout_seconds", "max_loaded_groups", "max_loaded_bytes",
    "group_residence_seconds", "response_store_max_bytes_per_key", "file_store_max_bytes",
    "file_store_max_bytes_per_key",
)  # fmt: skip


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
    return None


def _listeners(settings: Settings) -> str | None:
    for name in PORTS:
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
    for name in (option.name for option in OPTIONS if type(option.default) in (int, float)):
        number, zero = getattr(settings, name), name in MAY_BE_ZERO
        if name not in PORTS and (number < 0 or (number == 0 and not zero)):
            return f"--{name}: expected {'0 or more' if zero else 'more than 0'}, got {number}"
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
