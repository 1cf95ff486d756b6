"""ModelStreamInfer with Triton's own client: events, several requests at once, runs of tensors, leaving."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc.aio as triton
from tritonclient.grpc import service_pb2

from tests.conftest import eventually, script_graph
from tests.grpc_api.conftest import ENDLESS, TENSORS, Running, Scripted, running
from tests.grpc_api.test_infer import body, tensor

THREE = json.dumps({"replies": [{"text": "one two three"}]})


async def every(
    items: list[dict[str, Any]], admission: asyncio.Event | None = None
) -> AsyncIterator[dict[str, Any]]:
    for item in items:
        yield item
    if admission is not None:
        await admission.wait()


async def answers(
    client: triton.InferenceServerClient, *items: dict[str, Any]
) -> list[tuple[str, Any, str | None]]:
    """Id, event and error of each response."""
    found: list[tuple[str, Any, str | None]] = []
    async for result, error in client.stream_infer(every(list(items))):
        if error is not None:
            found.append(("", None, error.message()))
            continue
        found.append((result.get_response().id, json.loads(result.as_numpy("reply")[0]), None))
    return found


def ask(id_: str, **fields: Any) -> dict[str, Any]:
    return {"model_name": "m", "request_id": id_, "inputs": [body(stream=True, **fields)]}


def text_of(events: list[Any]) -> str:
    return "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])


async def test_events_without_their_framing(scripted: Scripted) -> None:
    async with scripted(THREE) as server, triton.InferenceServerClient(server.address) as client:
        found = await answers(client, ask("1"))
        assert [f[0] for f in found] == ["1"] * len(found)
        assert text_of([f[1] for f in found]) == "one two three"
        assert found[-1][1]["choices"][0]["finish_reason"] == "stop"
        assert {f[2] for f in found} == {None}


async def test_the_empty_last_response_is_sent_when_asked_for(scripted: Scripted) -> None:
    async with scripted(THREE) as server, server.channel() as channel:
        call = stream_call(channel)
        request = message("1")
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        await call.write(request)
        await call.done_writing()
        found = [r.infer_response async for r in call]
        finals = [r.parameters["triton_final_response"].bool_param for r in found]
        assert finals == [False] * (len(found) - 1) + [True]
        assert (found[-1].id, len(found[-1].outputs)) == ("1", 0)


async def test_requests_of_one_stream_run_side_by_side_and_fail_alone(scripted: Scripted) -> None:
    async with scripted(THREE) as server, triton.InferenceServerClient(server.address) as client:
        found = await answers(
            client,
            ask("a"),
            ask("bad", max_tokens=-2),
            ask("b"),
            ask("whole") | {"inputs": [body()]},
            {**ask("gone"), "model_name": "other"},
        )
        errors = sorted(f[2] for f in found if f[1] is None and f[2])
        assert len(errors) == 2
        assert errors[0].startswith("max_tokens")
        assert "model 'other' is not served" in errors[1]
        for id_ in ("a", "b"):
            assert text_of([f[1] for f in found if f[0] == id_ and f[1]]) == "one two three"
        (whole,) = [f[1] for f in found if f[0] == "whole"]
        assert whole["object"] == "chat.completion"


async def test_an_error_carries_the_id_of_its_request(scripted: Scripted) -> None:
    """tritonclient drops it; the message has it."""
    async with scripted(THREE) as server, server.channel() as channel:
        call = stream_call(channel)
        await call.write(message("1"))
        await call.write(message("2", max_tokens=-2))
        await call.done_writing()
        errors = [r async for r in call if r.error_message]
        assert [(e.infer_response.id, e.error_message.partition(":")[0]) for e in errors] == [
            ("2", "max_tokens")
        ]


@pytest.mark.parametrize(
    ("changes", "status", "text"),
    [
        ({"model_name": "n"}, "NOT_FOUND", "model 'n' is not served"),
        ({"model_version": "3"}, "NOT_FOUND", "only version 1"),
        ({"inputs": [tensor("http", [1.0])]}, "INVALID_ARGUMENT", "takes BYTES of one element"),
    ],
)
async def test_a_wrong_first_request_ends_the_call(
    scripted: Scripted, changes: dict[str, Any], status: str, text: str
) -> None:
    async with scripted(THREE) as server, triton.InferenceServerClient(server.address) as client:
        with pytest.raises(grpc.RpcError) as caught:
            await answers(client, ask("1") | changes)
        assert caught.value.code().name == status
        assert text in caught.value.details()


async def test_a_run_of_tensors_keeps_its_state() -> None:
    """One run for the stream: the count goes up. Half of a request may come later."""
    async with running(TENSORS) as server, triton.InferenceServerClient(server.address) as client:
        found: list[tuple[str, str, list[float]]] = []
        requests = [
            {"model_name": "m", "request_id": "1", "inputs": [tensor("a", [1]), tensor("b", [2])]},
            {"model_name": "m", "request_id": "2", "inputs": [tensor("a", [3])]},
            {"model_name": "m", "request_id": "x", "inputs": [tensor("c", [3])]},
            {"model_name": "n", "request_id": "y", "inputs": [tensor("a", [3])]},
            {"model_name": "m", "request_id": "2", "inputs": [tensor("b", [4])]},
        ]
        errors = []
        async for result, error in client.stream_infer(every(requests)):
            if error is not None:
                errors.append(error.message())
                continue
            (output,) = result.get_response().outputs
            found.append((result.get_response().id, output.name, result.as_numpy(output.name).tolist()))
        assert sorted(found) == [
            ("1", "count", [1]),
            ("1", "sum", [3]),
            ("2", "count", [2]),
            ("2", "sum", [7]),
        ]
        assert sorted(e.partition(":")[0] for e in errors) == ["inputs", "model_name"]


async def test_a_run_that_fails_ends_the_stream() -> None:
    async with running(TENSORS) as server, triton.InferenceServerClient(server.address) as client:
        wrong = [tensor("a", [1]), tensor("b", [2], "INT32", "int32")]
        with pytest.raises(grpc.RpcError, match="expected one datatype, got FP32 and INT32"):
            async for _ in client.stream_infer(
                every([{"model_name": "m", "inputs": wrong}], asyncio.Event())
            ):
                pass


def stream_call(channel: grpc.aio.Channel, **more: Any) -> Any:
    return channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
    )(**more)


def unary_call(channel: grpc.aio.Channel, request: Any, **more: Any) -> Any:
    return channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=service_pb2.ModelInferResponse.FromString,
    )(request, **more)


def message(id_: str, *, stream: bool = True, **fields: Any) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name="m", id=id_)
    text = {"stream": stream, "messages": [{"role": "user", "content": "hi"}], **fields}
    tensor_ = request.inputs.add(name="http", datatype="BYTES", shape=[1])
    tensor_.contents.bytes_contents.append(json.dumps(text).encode())
    return request


async def freed(server: Running) -> None:
    await eventually(lambda: server.engine.stats().running == 0)
    assert server.engine.stats().aborted == 1


@pytest.mark.parametrize("how", ["cancel", "deadline", "close"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_the_engine(scripted: Scripted, how: str, stream: bool) -> None:
    async with scripted(ENDLESS) as server, server.channel() as channel:
        more = {"timeout": 4.0} if how == "deadline" else {}
        if stream:
            call = stream_call(channel, **more)
            await call.write(message("1"))
            assert not (await call.read()).error_message
        else:
            call = unary_call(channel, message("1", stream=False), **more)
            task = asyncio.ensure_future(call.code())
        await eventually(lambda: server.engine.stats().running == 1)
        if how == "cancel":
            call.cancel()
        elif how == "close":
            await channel.close()
        else:
            assert await call.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await freed(server)
        if not stream:
            await task


async def test_a_stream_of_two_graphs(tmp_path: Path) -> None:
    graph = script_graph(tmp_path / "llm", THREE)
    async with running(graph, TENSORS) as server, triton.InferenceServerClient(server.address) as client:
        other = {"model_name": TENSORS.name, "inputs": [tensor("a", [1])]}
        found = await answers(client, ask("1"), other)
        assert [f[2] for f in found if f[1] is None] == [
            f"model_name: {TENSORS.name!r} takes tensors, in a stream of its own"
        ]
