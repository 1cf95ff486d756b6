"""gRPC in the real server process: the event loop it is served by, how it ends, what it is refused for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
import tritonclient.grpc as triton
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.conftest import ROOT, script_graph, start_server
from tests.grpc_api.test_infer import body
from tests.grpc_api.test_stream import message
from tests.ports import free_port

SCRIPT = json.dumps({"step_seconds": 0.02, "replies": [{"text": "word ", "repeat": 60}]})


def test_a_running_stream_finishes_while_the_server_stops(tmp_path: Path) -> None:
    port = free_port()
    server = start_server(script_graph(tmp_path / "g", SCRIPT), "--port", str(port), name="m")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest()
        assert health.Check(asked).status == health_pb2.HealthCheckResponse.SERVING
        watched = health.Watch(asked)
        assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
        events = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=triton.service_pb2.ModelStreamInferResponse.FromString,
        )(iter([message("1")]))
        next(events)
        os.kill(engine := server.engine_pid(), signal.SIGSTOP)  # the stream does not end meanwhile
        server.process.send_signal(signal.SIGTERM)
        assert next(watched).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
            assert not client.is_server_ready()
            with pytest.raises(triton.InferenceServerException, match="the server is stopping") as caught:
                client.infer("m", [body()])
            assert caught.value.status() == "StatusCode.UNAVAILABLE"
        os.kill(engine, signal.SIGCONT)
        last = list(events)[-1].infer_response.raw_output_contents[0]
        assert json.loads(last[4:])["choices"][0]["finish_reason"] == "stop"
    assert server.stop() == 0
    assert not [line for line in server.errors if "fork" in line or "Traceback" in line]


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (["--grpc_port", "70000"], 2, "--grpc_port: expected 0 to 65535, got 70000"),
        (["--grpc_port", "8000"], 2, "--grpc_port: 8000 is --rest_port too"),
        (
            ["--grpc_port", "1", "--grpc_channel_arguments", "a"],
            1,
            "--grpc_channel_arguments: expected key=value",
        ),
    ],
)
def test_what_is_refused_at_start(flags: list[str], code: int, text: str) -> None:
    graph = str(ROOT / "examples/04_tensor_graph")
    command = [sys.executable, "-m", "ovserve", "serve", "--model_name", "m", "--model_path", graph, *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=230, check=False)
    assert done.returncode == code
    assert text in done.stderr


def test_a_port_that_is_taken() -> None:
    port = free_port()
    graph = ROOT / "examples/04_tensor_graph"
    server = start_server(graph, "--grpc_port", str(port), name="m")
    try:
        with pytest.raises(RuntimeError, match=f"cannot listen on 127.0.0.1:{port} for gRPC"):
            start_server(graph, "--grpc_port", str(port), name="m")
    finally:
        server.stop()
