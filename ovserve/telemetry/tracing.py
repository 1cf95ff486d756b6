"""OpenTelemetry: one span per request, with the model, its token counts and the time of its first token.

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
        span.end(end_time=end)

    async def stop(self) -> None:
        """Send the pending spans."""
        await asyncio.to_thread(self._provider.shutdown)


def _otlp(endpoint: str) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint if PATH in endpoint else endpoint.rstrip("/") + PATH)
