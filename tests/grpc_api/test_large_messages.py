"""No infer message holds the event loop: `/v2/health/live` is asked over HTTP while large ones are worked off.

As in tests/http/test_large_bodies.py, what is judged is the CPU time of the server's main thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import grpc
import pytest
from tritonclient.grpc import service_pb2

from benchmarks.hostile import watching
from tests.conftest import Server, script_graph, start_server
from tests.ports import free_port

HELD = 200.0  # ms of the event loop; an EPYC without AVX-512, next to another test process, took 127
TRIES = 3
METHOD = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
SCRIPT = json.dumps({"max_length": 100_000_000, "replies": [{"text": "one two"}]})

Request = service_pb2.ModelInferRequest


def parameters() -> Request:
    made = Request(model_name="m")
    for i in range(400_000):
        made.parameters[f"k{i}"].int64_param = i
    return made


def typed() -> Request:
    made = Request(model_name="m")
    tensor = made.inputs.add(name="http", datatype="FP32", shape=[5_000_000])
    tensor.contents.fp32_contents.extend([0.5] * 5_000_000)
    return made


def texts() -> Request:
    made = Request(model_name="m")
    tensor = made.inputs.add(name="http", datatype="BYTES", shape=[1_000_000])
    tensor.contents.bytes_contents.extend([b"x"] * 1_000_000)
    return made


def raw_texts() -> Request:
    made = Request(model_name="m")
    made.inputs.add(name="http", datatype="BYTES", shape=[1_000_000])
    made.raw_input_contents.append(b"\x01\0\0\0x" * 1_000_000)
    return made


def inputs() -> Request:
    made = Request(model_name="m")
    for i in range(200_000):
        made.inputs.add(name=f"i{i}", datatype="INT32", shape=[1])
    return made


def chat(fields: dict[str, object]) -> Request:
    text = json.dumps(fields).encode()
    made = Request(model_name="m")
    made.inputs.add(name="http", datatype="BYTES", shape=[1])
    made.raw_input_contents.append(len(text).to_bytes(4, "little") + text)
    return made


def messages() -> Request:
    return chat({"messages": [{"role": "user", "content": "x"}] * 300_000})


def properties() -> Request:
    schema = {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(4_000)}}
    return chat({"messages": [{"role": "user", "content": "x"}], "guided_json": schema})


LARGE = (parameters, typed, texts, raw_texts, inputs, messages, properties)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, grpc.Channel]]:
    port = free_port()
    graph = script_graph(tmp_path_factory.mktemp("large"), SCRIPT)
    server = start_server(graph, "--port", str(port), name="m")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert ask(
            channel, chat({"messages": [{"role": "user", "content": "x"}] * 20_000}).SerializeToString()
        )
        yield server, channel
    server.stop()


def ask(channel: grpc.Channel, message: bytes, *, stream: bool = False) -> str:
    """The status, or the error of the first answer of a stream."""
    try:
        if not stream:
            channel.unary_unary(METHOD)(message, timeout=230)
            return "OK"
        answers = list(channel.stream_stream(STREAM)(iter([message]), timeout=230))
        return service_pb2.ModelStreamInferResponse.FromString(answers[0]).error_message or "OK"
    except grpc.RpcError as error:
        return str(error.code())


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("make", LARGE, ids=lambda make: make.__name__)
def test_no_infer_message_holds_the_loop(
    served: tuple[Server, grpc.Channel], make: Callable[[], Request], stream: bool
) -> None:
    server, channel = served
    message = make().SerializeToString()
    best = float("inf")
    for _ in range(TRIES):
        with watching(server) as watch:
            said = ask(channel, message, stream=stream)
        assert said
        assert said not in ("StatusCode.INTERNAL", "StatusCode.UNKNOWN", "StatusCode.DEADLINE_EXCEEDED")
        best = min(best, watch.held)
        if best < HELD:
            break
    assert best < HELD, f"{len(message)} bytes: {best} ms"


def test_a_small_message_is_answered_as_ever(served: tuple[Server, grpc.Channel]) -> None:
    message = chat({"messages": [{"role": "user", "content": "x"}]}).SerializeToString()
    assert ask(served[1], message) == "OK"
    assert ask(served[1], message, stream=True) == "OK"
