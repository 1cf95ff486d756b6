"""OpenTelemetry: a span per request, with the model and its token counts. Inside of it are spans of queue,
prefill and decode, and one for each node of the graph.

It is an extra (`otel`), imported only with --otlp_traces_endpoint. A span is created when the request has
ended, with the recorded times, so nothing is carried along meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

from ovserve import __version__
from ovserve.access.access_log import Ended
from ovserve.errors import LoadError, extra

PATH = "/v1/traces"  # the path of an OTLP collector


class Tracing:
    """Exports spans. `exporter` is for tests; without one, spans go to `endpoint` in OTLP over HTTP, in
    batches.

    The library sends them from a thread. Raises LoadError when the extra is missing.
    """

    def __init__(self, endpoint: str, exporter: Any = None) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as exc:
            raise LoadError(f"--otlp_traces_endpoint needs the extra otel; {extra('otel')}") from exc
        name = os.environ.get("OTEL_SERVICE_NAME", "ovserve")
        resource = Resource.create({"service.name": name, "service.version": __version__})
        self._provider = TracerProvider(resource=resource)
        processor = SimpleSpanProcessor(exporter) if exporter else BatchSpanProcessor(_otlp(endpoint))
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("ovserve", __version__)
        self._parent: Callable[[Any], Any] = TraceContextTextMapPropagator().extract
        self._trace = trace

    def record(self, ended: Ended) -> None:
        trace, call = self._trace, ended.call
        end = time.time_ns()
        start = end - int(ended.seconds * 1e9)
        attributes: dict[str, Any] = {"url.path": ended.path, "ovserve.request_id": ended.request_id}
        if isinstance(ended.status, int):
            attributes |= {
                "http.request.method": ended.method,
                "http.response.status_code": ended.sent_status or ended.status,
            }
        else:
            attributes |= {"rpc.system": "grpc", "rpc.method": ended.path, "rpc.status": ended.status}
        if call.model:
            attributes["gen_ai.request.model"] = call.model
        if call.prompt_tokens:
            attributes["gen_ai.usage.input_tokens"] = call.prompt_tokens
            attributes["gen_ai.usage.output_tokens"] = call.generated_tokens
        span = self._tracer.start_span(
            f"{ended.method} {ended.path}",
            context=self._parent(ended.headers),
            kind=trace.SpanKind.SERVER,
            attributes=attributes,
            start_time=start,
        )
        if call.first_token is not None:
            span.set_attribute("gen_ai.server.time_to_first_token", call.first_token)
            span.add_event("first token", timestamp=start + int(call.first_token * 1e9))
        if ended.failed:
            span.set_status(trace.StatusCode.ERROR)
        inside = trace.set_span_in_context(span)
        for name, begins, ends, more in (*_stages(ended), *_nodes(ended)):
            at, until = (start + int(min(max(0.0, t), ended.seconds) * 1e9) for t in (begins, ends))
            child = self._tracer.start_span(name, context=inside, attributes=more, start_time=at)
            child.end(end_time=until)
        span.end(end_time=end)

    async def stop(self) -> None:
        await asyncio.to_thread(self._provider.shutdown)


Part = tuple[str, float, float, dict[str, Any]]  # name, seconds from the request to begin and end, attributes


def _stages(ended: Ended) -> list[Part]:
    """Return queue, prefill and decode, as far as the request came. A request that runs twice has its first
    times."""
    call, end = ended.call, ended.seconds
    cached = {} if call.cached_tokens is None else {"ovserve.cached_tokens": call.cached_tokens}
    marks: tuple[tuple[str, float | None, dict[str, Any]], ...] = (
        ("queue", call.queued, {}),
        ("prefill", call.admitted, {"gen_ai.usage.input_tokens": call.prompt_tokens, **cached}),
        ("decode", call.first_token, {}),
    )
    stages = [(name, at, more) for name, at, more in marks if at is not None]
    limits = [*(at for _, at, _ in stages[1:]), end]
    return [(name, at, max(at, until), more) for (name, at, more), until in zip(stages, limits, strict=True)]


def _nodes(ended: Ended) -> list[Part]:
    """Return a part per node, from its first call to the end of its last; `ovserve.node.seconds` is the time
    inside of calls."""
    began = time.perf_counter() - (time.monotonic() - ended.call.started)
    return [
        (
            f"node {name}",
            node.began - began,
            node.ended - began,
            {
                "ovserve.node.name": name,
                "ovserve.node.calls": node.calls,
                "ovserve.node.seconds": node.seconds,
            },
        )
        for name, node in (ended.call.nodes or {}).items()
    ]


def _otlp(endpoint: str) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint if PATH in endpoint else endpoint.rstrip("/") + PATH)
