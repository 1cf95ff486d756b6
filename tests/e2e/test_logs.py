"""What the server process writes: one line a request, at every level without prompts and keys."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import grpc
import httpx
import pytest
import trustme
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ovserve.protos import kserve_pb2
from tests.conftest import script_graph, start_server
from tests.ports import free_port

KEY, WRONG, PROMPT, ANSWER = "a-key-nobody-may-see", "another-secret-key", "tell-me-a-secret", "it-is-hidden"
SCRIPT = json.dumps({"replies": [{"text": f"{ANSWER} one two"}]})


@pytest.mark.parametrize("level", ["INFO", "TRACE"])
def test_one_json_line_a_request_and_no_secret_in_it(tmp_path: Path, level: str) -> None:
    spans: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            spans.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    (tmp_path / "key").write_text(KEY)
    log = tmp_path / "server.log"
    flags = ["--log_format", "json", "--log_path", str(log), "--log_level", level]
    flags += ["--api_key_file", str(tmp_path / "key")]
    flags += ["--otlp_traces_endpoint", f"http://127.0.0.1:{collector.server_port}"]
    server = start_server(script_graph(tmp_path / "g", SCRIPT), *flags, name="m")
    try:
        messages = [{"role": "user", "content": PROMPT}]
        with httpx.Client(headers={"Authorization": f"Bearer {KEY}"}, timeout=230) as http:
            for id_, body in (
                ("whole", {"model": "m", "messages": messages}),
                ("stream", {"model": "m", "messages": messages, "stream": True}),
                ("refused", {"model": "m", "messages": messages, "temperature": PROMPT}),
                ("stored", {"model": "m", "input": PROMPT}),
            ):
                path = "/responses" if "input" in body else "/chat/completions"
                http.post(server.v3 + path, json=body, headers={"x-request-id": id_})
            http.get(server.url + "/v2/health/ready")
            http.get(server.url + "/no%0Asuch\u2028path", headers={"x-request-id": "lines"})
            http.get(server.v3 + "/models", headers={"Authorization": f"Bearer {WRONG}"})
    finally:
        assert server.stop() == 0
        collector.shutdown()
        collector.server_close()
    text = log.read_text()
    assert text == "".join(server.errors)
    lines = [json.loads(line) for line in text.splitlines()]
    told = {line["request_id"]: line for line in lines if line["logger"] == "access"}
    assert len(told) == sum(line["logger"] == "access" for line in lines), "one line each"
    for id_ in ("whole", "stream", "stored"):
        line = told[id_]
        assert (line["status"], line["model"]) == (200, "m")
        assert line["generated_tokens"] > 0
        assert line["prompt_tokens"] > 0
        assert 0 < line["first_token_ms"] <= line["total_ms"]
    assert told["refused"]["status"] == 400
    assert (told["refused"]["error"], told["refused"]["param"]) == ("invalid_argument", "temperature")
    assert told["lines"]["error"] == "not_found"
    assert told["lines"]["path"] == "/no%0Asuch%E2%80%A8path"
    assert sum(line["status"] == 401 for line in told.values()) == 1
    assert ("/v2/health/ready" in text) is (level == "TRACE")
    for secret in (KEY, WRONG, PROMPT, ANSWER):
        assert secret not in text
        assert secret.encode() not in b"".join(spans)
    assert b"gen_ai.usage.output_tokens" in b"".join(spans)
    for id_ in ("whole", "stream"):
        check_parts(spans, id_)


def check_parts(bodies: list[bytes], request_id: str) -> None:
    """What a collector decodes: queue, prefill, decode and the nodes lie inside of the request's span, in order."""
    spans = [
        span
        for body in bodies
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    [whole] = [s for s in spans if any(a.value.string_value == request_id for a in s.attributes)]
    inside = {s.name: s for s in spans if s.parent_span_id == whole.span_id}
    assert all(s.trace_id == whole.trace_id for s in inside.values())
    for span in inside.values():
        assert whole.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= whole.end_time_unix_nano
    queue, prefill, decode = (inside[name] for name in ("queue", "prefill", "decode"))
    assert queue.end_time_unix_nano == prefill.start_time_unix_nano
    assert prefill.end_time_unix_nano == decode.start_time_unix_nano
    assert sum(name.startswith("node ") for name in inside) == 5, "the shipped graph has five nodes"
    for name, span in inside.items():
        if name.startswith("node "):
            calls = {a.key: a.value.int_value for a in span.attributes}
            assert calls["ovserve.node.calls"] >= 1


def test_grpc_has_the_same_key_the_same_tls_and_the_same_line(tmp_path: Path) -> None:
    ca = trustme.CA()
    made = ca.issue_cert("127.0.0.1")
    made.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    made.private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "key").write_text(KEY)
    path = tmp_path / "grpc.sock"
    flags = ["--tls_cert_file", str(tmp_path / "cert.pem"), "--tls_key_file", str(tmp_path / "key.pem")]
    flags += ["--api_key_file", str(tmp_path / "key"), "--grpc_port", str(free_port())]
    flags += ["--grpc_bind_address", f"127.0.0.1,unix:{path}"]
    server = start_server(script_graph(tmp_path / "g", SCRIPT), *flags, name="m")
    secure = grpc.ssl_channel_credentials(ca.cert_pem.bytes())

    async def ask(channel: grpc.aio.Channel, key: str) -> grpc.StatusCode:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ServerMetadata",
            request_serializer=kserve_pb2.ServerMetadataRequest.SerializeToString,
            response_deserializer=kserve_pb2.ServerMetadataResponse.FromString,
        )
        metadata = (("authorization", f"Bearer {key}"), ("x-request-id", f"r-{key[:4]}"))
        running = call(kserve_pb2.ServerMetadataRequest(), metadata=metadata)
        return await running.code()

    async def all_() -> list[grpc.StatusCode]:
        target = f"127.0.0.1:{flags[flags.index('--grpc_port') + 1]}"
        found = []
        async with grpc.aio.secure_channel(target, secure) as channel:
            found += [await ask(channel, KEY), await ask(channel, WRONG)]
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            found.append(await ask(channel, KEY))
        async with grpc.aio.insecure_channel(target) as channel:
            found.append(await ask(channel, KEY))
        return found

    try:
        ok, refused = grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED
        assert asyncio.run(all_()) == [ok, refused, ok, grpc.StatusCode.UNAVAILABLE]
    finally:
        assert server.stop() == 0
    text = "".join(server.errors)
    assert text.count("grpc ServerMetadata OK total_ms=") == 2
    assert text.count("[r-anot] grpc ServerMetadata UNAUTHENTICATED") == 1
    assert KEY not in text
    assert WRONG not in text
