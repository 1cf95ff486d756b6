"""The aiohttp application and its runner: the route table, the limits, and settings that differ from
aiohttp's.

Tests use the same runner, never aiohttp's test server, whose defaults differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from ovserve.access import AccessLog, Guard
from ovserve.api.azure import DEPLOYMENTS, FOUNDRY, FOUNDRY_INFO, INFO
from ovserve.errors import OvserveError
from ovserve.http.body import BODIES
from ovserve.http.connections import KEEP_ALIVE_SECONDS, LIMITS, LINGER_SECONDS, RestLimits, Runner
from ovserve.http.errors import OPENAI_STYLE
from ovserve.http.middleware import (
    ACCESS_LOG,
    CONSOLE_API,
    METRICS,
    Cors,
    Handler,
    answer_errors,
    authorize,
    finish_headers,
    identify,
    other_method,
)
from ovserve.http.openapi import VERSIONS
from ovserve.http.routes.config import Config, LoraRoutes
from ovserve.http.routes.describe import PARENT, Describe, TokenRoutes
from ovserve.http.routes.ollama import Ollama
from ovserve.http.routes.realtime import RealtimeRoutes
from ovserve.http.routes.responses import BatchRoutes, ResponsesRoutes
from ovserve.http.routes.tensorflow import MODEL as TENSORFLOW_MODEL
from ovserve.http.routes.tensorflow import VERSIONS as TENSORFLOW_VERSIONS
from ovserve.http.routes.tensorflow import TensorFlow
from ovserve.http.routes.v2 import V2, V2Models, no_shared_memory, no_traces
from ovserve.http.routes.v3 import V3, Azure
from ovserve.services.inference.administration import Administration
from ovserve.services.inference.infer import Inference
from ovserve.services.responses.batch_lines import BatchBounds
from ovserve.services.responses.batches import BatchService
from ovserve.services.responses.files import FileBounds, Files
from ovserve.services.responses.service import ResponsesService
from ovserve.services.responses.store import ResponseStore
from ovserve.serving.manager import Manager

TEXTS = "(?:chat/|fim/)?completions|embeddings|(?:v2/)?embed|rerank|score|classify"
MEDIA = "images/(?:generations|edits)|audio/(?:speech|transcriptions|translations)"
ENDPOINTS = "/{endpoint:" + TEXTS + "|messages|" + MEDIA + "}"
DEPLOYED = DEPLOYMENTS + "/{deployment:.+?}/{endpoint:(?:chat/)?completions|embeddings|" + MEDIA + "}"
# Clients of Triton and KServe write the `/` of a name as it is.
NAME = "[^/]+(?:/[^/]+)*?"
MODEL_PATHS = tuple(f"/v2/models/{{model:{NAME}}}{one}" for one in ("/versions/{version:[^/]+}", ""))


def _kserve(manager: Manager, inference: Inference) -> list[tuple[str, str, Handler]]:
    """Return the paths of KServe and Triton, except those of health."""
    models = V2Models(Administration(manager), inference)
    table: list[tuple[str, str, Handler]] = [
        # First, because aiohttp tries patterns with the same beginning one by one.
        *(("POST", model + "/infer", models.infer) for model in MODEL_PATHS),
        ("GET", "/v2", models.server),
        ("GET", "/v2/models/stats", models.statistics),
        ("POST", "/v2/repository/index", models.index),
        ("POST", f"/v2/repository/models/{{name:{NAME}}}/load", models.load),
        ("POST", f"/v2/repository/models/{{name:{NAME}}}/unload", models.unload),
        ("GET", "/v2/logging", models.log_settings),
        ("POST", "/v2/logging", models.change_log_settings),
    ]
    for model in MODEL_PATHS:
        table += [
            ("GET", model + "/ready", models.ready),
            ("GET", model + "/config", models.config),
            ("GET", model + "/stats", models.statistics),
            ("GET", model, models.model),
        ]
    for method in ("GET", "POST"):
        table += [
            (method, "/v2/{kind:(?:system|cuda)sharedmemory}/{path:.+}", no_shared_memory),
            (method, "/v2/trace/setting", no_traces),
        ]
    return table


def _tensorflow(manager: Manager, inference: Inference) -> list[tuple[str, str, Handler]]:
    """Return TensorFlow Serving's paths, except that of a model's status, which is OpenAI's as well."""
    served = TensorFlow(Administration(manager), inference)
    table: list[tuple[str, str, Handler]] = []
    for version in TENSORFLOW_VERSIONS:
        model = TENSORFLOW_MODEL + version
        table += [("POST", model + ":predict", served.predict), ("GET", model + "/metadata", served.metadata)]
        table += [("GET", model, served.status)] if version else []
    return table


def _ollama(ollama: Ollama) -> list[tuple[str, str, Handler]]:
    return [
        ("POST", "/api/pull", ollama.pull),
        ("POST", "/api/{endpoint:chat|generate}", ollama.infer),
        ("POST", "/api/{endpoint:embed(?:dings)?}", ollama.embed),
        ("GET", "/api/tags", ollama.tags),
        ("GET", "/api/ps", ollama.ps),
        ("POST", "/api/show", ollama.show),
        ("GET", "/", ollama.root),
        ("GET", "/api/version", ollama.version),
    ]


def routes(
    manager: Manager,
    service: ResponsesService,
    inference: Inference,
    v3: V3,
    models: Path,
    batch_service: BatchService,
    realtime: RealtimeRoutes,
) -> list[tuple[str, str, Handler]]:
    """Return every path: method, pattern, handler."""
    v2, responses = V2(manager), ResponsesRoutes(service)
    describe, config = Describe(manager), Config(manager)
    table: list[tuple[str, str, Handler]] = [
        ("GET", "/v2/health/live", v2.live),
        ("GET", "/v2/health/ready", v2.ready),
        ("GET", "/openapi.json", describe.openapi),
        ("GET", "/metrics", config.metrics),
        ("GET", "/v1/config", config.status),
        ("POST", "/v1/config/reload", config.reload),
        *_kserve(manager, inference),
        *_tensorflow(manager, inference),
    ]
    azure, tokens = Azure(manager, v3.infer), TokenRoutes(manager)
    table += [
        # At the root the request decides between Azure's and OpenAI's; the first match wins.
        *(("POST", base + "/{endpoint:chat/completions}", azure.chat) for base in ("", FOUNDRY)),
        *(("POST", base + "/{endpoint:embeddings}", azure.embed) for base in ("", FOUNDRY)),
        ("GET", FOUNDRY + "/{endpoint:embeddings}", v3.get_model),  # a name that a model may have
        ("GET", FOUNDRY_INFO, azure.info_or(v3.get_model)),
        ("POST", DEPLOYED, azure.deployed),
    ]
    table += _ollama(Ollama(manager, models))
    lora, batches = LoraRoutes(manager), BatchRoutes(batch_service)
    for version in VERSIONS:
        table += [
            ("GET", version + INFO, azure.info),
            ("POST", version + ENDPOINTS, v3.infer),
            ("POST", version + "/v2/{endpoint:rerank}", v3.infer),
            ("GET", version + "/audio/voices", describe.voices),
            ("POST", version + "/load_lora_adapter", lora.load),
            ("POST", version + "/unload_lora_adapter", lora.unload),
            ("GET", version + "/models", v3.list_models),
            ("GET", version + "/models/{model:.+}", v3.get_model),
            ("GET", version + "/health", v2.ready),
            ("POST", version + "/messages/count_tokens", tokens.count),
            ("POST", version + PARENT + "tokenize", tokens.tokenize),
            ("POST", version + PARENT + "detokenize", tokens.detokenize),
            ("GET", version + PARENT + "tokenizer_info", tokens.info),
            ("POST", version + "/responses", responses.create),
            ("POST", version + "/responses/input_tokens", responses.count),
            ("GET", version + "/responses/{id}", responses.get),
            ("DELETE", version + "/responses/{id}", responses.delete),
            ("GET", version + "/responses/{id}/input_items", responses.input_items),
            ("POST", version + "/responses/{id}/cancel", responses.cancel),
            ("GET", version + "/realtime", realtime.connect),
            ("POST", version + "/realtime/client_secrets", realtime.create_secret),
            ("GET", version + "/capabilities", describe.capabilities),
            ("POST", version + "/files", batches.upload),
            ("GET", version + "/files", batches.list_files),
            ("GET", version + "/files/{id}", batches.get_file),
            ("GET", version + "/files/{id}/content", batches.content),
            ("DELETE", version + "/files/{id}", batches.delete_file),
            ("POST", version + "/batches", batches.create),
            ("GET", version + "/batches", batches.list_batches),
            ("GET", version + "/batches/{id}", batches.get_batch),
            ("POST", version + "/batches/{id}/cancel", batches.cancel),
        ]
    # The console's page polls it, and what it reads has no line in the log.
    return [*table, ("GET", CONSOLE_API + "batches", batches.list_batches)]


def build_app(
    manager: Manager,
    limits: RestLimits,
    responses: ResponsesService | None = None,
    guard: Guard | None = None,
    cors: Cors | None = None,
    access_log: AccessLog | None = None,
    inference: Inference | None = None,
    first: Iterable[tuple[str, str, Handler]] = (),
    models: Path = Path("models"),
    batches: BatchService | None = None,
) -> web.Application:
    """Build the application. `first` are paths of others, which win over the server's own. `models` is the
    directory of pulled models.

    Without a `responses` service it uses one that stores nothing; without a `guard` no key is needed. The
    gRPC transport shares `inference` and its counts.
    """
    service, guard = responses or ResponsesService(manager, None), guard or Guard()
    batches = batches or build_batches(manager, service, guard, None)
    v3 = V3(manager)
    realtime = RealtimeRoutes(manager, guard, cors or Cors())
    table = routes(manager, service, inference or Inference(manager), v3, models, batches, realtime)
    around: list[Middleware] = [
        identify,
        answer_errors,
        authorize(guard),
        v3.declared_endpoints(VERSIONS[:-1]),
    ]
    app = web.Application(middlewares=around, client_max_size=limits.body_bytes)
    app[LIMITS] = limits
    app.on_response_prepare.append(finish_headers(cors or Cors(), lambda: manager.stopping))
    app[METRICS] = manager.metrics
    app[BODIES] = manager.bodies
    app[ACCESS_LOG] = access_log or AccessLog()
    _add_routes(app, (*first, *table))
    return app


def _add_routes(app: web.Application, table: Iterable[tuple[str, str, Handler]]) -> None:
    """Give a path to the first pattern that it matches, whatever the method: a 405 of /models/embeddings must
    not become a 404 of /models/{model}. Of two rows with the same method and pattern, the first wins."""
    patterns: dict[str, dict[str, Handler]] = {}
    for method, pattern, handler in table:
        handlers = patterns.setdefault(pattern, {})
        handlers.setdefault(method, handler)
        if method == "GET":
            handlers.setdefault("HEAD", handler)
    for pattern, handlers in patterns.items():
        resource = app.router.add_resource(pattern)
        for method, handler in handlers.items():
            resource.add_route(method, handler)
        resource.add_route(hdrs.METH_ANY, other_method)


def build_batches(
    manager: Manager,
    responses: ResponsesService,
    guard: Guard,
    store: ResponseStore | None,
    files: FileBounds | None = None,
    bounds: BatchBounds | None = None,
) -> BatchService:
    """Build the service of files and batches; `start` and `stop` it. A line fails as a live request does."""

    def answer_error(error: OvserveError) -> tuple[int, bytes]:
        status, _, body = OPENAI_STYLE.answer(error)
        return status, body

    return BatchService(manager, responses, Files(store, files), guard, answer_error, bounds)


def build_metrics_app(manager: Manager, limits: RestLimits, access_log: AccessLog) -> web.Application:
    """Build the application of --metrics_port: metrics and health, which need no key."""
    v2 = V2(manager)
    around: list[Middleware] = [identify, answer_errors, authorize(Guard())]
    app = web.Application(middlewares=around, client_max_size=limits.body_bytes)
    app[LIMITS] = limits
    app[METRICS] = manager.metrics
    app[ACCESS_LOG] = access_log
    app.on_response_prepare.append(finish_headers(Cors("")))
    ready = ("/v2/health/ready", *(version + "/health" for version in VERSIONS))
    table = [("GET", "/metrics", Config(manager).metrics), ("GET", "/v2/health/live", v2.live)]
    _add_routes(app, (*table, *(("GET", path, v2.ready) for path in ready)))
    return app


def build_runner(app: web.Application, limits: RestLimits) -> Runner:
    return Runner(
        app,
        handler_cancellation=True,  # by default a disconnect is noticed only at the next write
        access_log=None,  # middleware.identify writes the line
        shutdown_timeout=limits.shutdown_seconds,
        keepalive_timeout=KEEP_ALIVE_SECONDS,
        lingering_time=LINGER_SECONDS,
        max_line_size=limits.head_bytes,
        max_field_size=limits.head_bytes,
        auto_decompress=False,  # `body.content_of` does it: aiohttp takes what ends before its checksum
    )
